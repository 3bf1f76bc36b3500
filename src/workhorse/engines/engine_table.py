"""What each engine can do on each generation of cards, as one table from the knowledge. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from workhorse.engines.adapter import Adapter, adapters
from workhorse.knowledge.compat import Rule, rules
from workhorse.knowledge.engine_environments import environments, environments_for
from workhorse.knowledge.gpus import Capability, architecture_of, cards
from workhorse.knowledge.recipes import recipes_for
from workhorse.text import Text

Verdict = Literal["yes", "slower", "no", "tried"]

# The conformance tests of both ran here, on a CPU (tests/engines/test_conformance.py).
TRIED_ON_A_CPU = {
    "llama.cpp": "tests/engines/test_conformance.py, embedded",
    "vllm": "tests/engines/test_conformance.py, vllm (WORKHORSE_TEST_VLLM)",
}
_WORDS: dict[Verdict, Text] = {
    "yes": Text("yes", "可用"),
    "slower": Text("yes, but", "可用，但"),
    "no": Text("no", "不可用"),
    "tried": Text("yes, tried", "可用，已实测"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One engine on one kind of hardware, with where that is known from."""

    verdict: Verdict
    words: Text
    sources: tuple[str, ...]  # ids of rules and recipes, or a test

    def shown(self) -> Text:
        """The cell as it is printed."""
        verdict = _WORDS[self.verdict]
        listed = ", ".join(self.sources)
        en = f": {self.words.en}" if self.words.en else ""
        zh = f"：{self.words.zh}" if self.words.zh else ""
        return Text(f"{verdict.en}{en} [{listed}]", f"{verdict.zh}{zh} [{listed}]")


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of hardware and what every engine does on it."""

    hardware: Text
    cells: tuple[Cell, ...]


def table() -> tuple[Row, ...]:
    """A row for the CPU, then one for each compute capability of a card that is known."""
    found = [Row(Text("CPU", "CPU"), tuple(on_cpu(adapter) for adapter in adapters()))]
    for capability in sorted({card.capability for card in cards()}):
        name = architecture_of(capability) or "?"
        number = f"{capability[0]}.{capability[1]}"
        hardware = Text(f"{name} ({number})", f"{name}（{number}）")
        cells = tuple(on_card(adapter, capability) for adapter in adapters())
        found.append(Row(hardware, cells))
    return tuple(found)


def on_cpu(adapter: Adapter) -> Cell:
    """Without a card."""
    if not adapter.skills.main_memory:
        words = Text("computes on cards only", "只能在显卡上运行")
        return Cell("no", words, (f"adapter of {adapter.title}",))
    packages = [recipe.name for recipe in environments_for(adapter.engine, None)]
    words = Text(packages[0], packages[0]) if packages else Text("", "")
    return Cell("tried", words, (TRIED_ON_A_CPU[adapter.engine],))


def on_card(adapter: Adapter, capability: Capability) -> Cell:
    """On a card: the version that would be taken there, and what the rules say of it."""
    recipe = next((r for r in recipes_for(capability) if r.engine == adapter.engine), None)
    environment = next(iter(environments_for(adapter.engine, capability)), None)
    newest = next((one.version for one in environments() if one.engine == adapter.engine), None)
    version = environment.version if environment else newest
    met = [rule for rule in rules() if _is_about(rule, adapter, capability, version)]
    fails = [rule for rule in met if rule.effect == "fails"]
    if fails or (recipe is None and environment is None):
        words = fails[0].cause if fails else Text("no recipe is known", "没有已知方案")
        return Cell("no", words, tuple(rule.id for rule in fails[:2]) or ("recipes.toml",))
    taken = environment.name if environment else recipe.versions[0] if recipe else ""
    slower = [rule for rule in met if rule.effect in ("falls back", "ended")]
    sources = [*(rule.id for rule in slower[:2]), *([recipe.id] if recipe else [])]
    if not sources:
        sources = [rule.id for rule in met if rule.effect == "works"][:1] or [taken]
    if slower:
        words = Text(f"{taken}; {slower[0].cause.en}", f"{taken}；{slower[0].cause.zh}")
        return Cell("slower", words, tuple(sources))
    return Cell("yes", Text(taken, taken), tuple(sources))


def _is_about(rule: Rule, adapter: Adapter, capability: Capability, version: str | None) -> bool:
    """Whether a rule decides over this engine as a whole on such a card."""
    if rule.use is not None or "capability" not in rule.when:
        return False
    facts = {
        "software": adapter.engine,
        "capability": f"{capability[0]}.{capability[1]}",
        **({"version": version} if version else {}),
    }
    return rule.when.get("software") == adapter.engine and rule.applies(facts) is True


def sources_of(found: Sequence[Row]) -> dict[str, str]:
    """The source of every rule and recipe that a table names."""
    named = {source for row in found for cell in row.cells for source in cell.sources}
    known = {rule.id: f"{rule.source} ({rule.date})" for rule in rules()}
    for capability in sorted({card.capability for card in cards()}):
        for recipe in recipes_for(capability):
            known[recipe.id] = f"{recipe.source} ({recipe.date})"
    return {source: known[source] for source in sorted(named) if source in known}
