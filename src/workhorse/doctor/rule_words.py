"""A rule of knowledge/compat/ as a finding about this machine."""

from collections.abc import Iterable, Sequence
from typing import Literal

from workhorse.knowledge.compat import Facts, Rule
from workhorse.knowledge.gpus import Confidence
from workhorse.records import Finding, Level
from workhorse.text import Text, same

SOFTWARE = {
    "llama.cpp": "llama.cpp",
    "vllm": "vLLM",
    "lmdeploy": "LMDeploy",
    "sglang": "SGLang",
    "ollama": "Ollama",
    "pytorch": "PyTorch",
}
_LEVELS: dict[str, Level] = {
    "works": "good",
    "ended": "note",
    "falls back": "warning",
    "risk": "warning",
    "fails": "warning",
}
_FACTS = {
    "capability": Text("compute capability {}", "计算能力 {}"),
    "driver": Text("driver {}", "驱动 {}"),
    "driver_module": Text("{} kernel module", "{} 内核模块"),
    "kernel": Text("kernel {}", "内核 {}"),
    "toolkit": Text("CUDA toolkit {}", "CUDA 工具包 {}"),
    "glibc": Text("glibc {}", "glibc {}"),
    "build": Text("build {}", "构建版本 {}"),
    "weights": Text("{} weights", "{} 权重"),
    "model": Text("architecture {}", "架构 {}"),
    "cpu_lacks": Text("a CPU without {}", "CPU 不支持 {}"),
}
_WORDS = {
    "open": Text("open", "开源"),
    "proprietary": Text("proprietary", "闭源"),
    "quantised": Text("quantised", "量化"),
}
_EFFECTS = {
    "fails": Text("does not work", "不可用"),
    "falls back": Text("works slower", "可用但较慢"),
    "risk": Text("may go wrong", "可能出错"),
    "ended": Text("works, but its support has ended", "可用，但已停止支持"),
    "works": Text("works", "可用"),
}


def sureness(confidence: Confidence) -> Literal["certain", "likely", "possible"]:
    """How far a row of knowledge can be trusted."""
    match confidence:
        case "verified-in-source" | "documented":
            return "certain"
        case "reported":
            return "likely"
        case "from memory":
            return "possible"


def rule_finding(
    rule: Rule, facts: Facts, about: Sequence[Text], *, level: Level | None = None
) -> Finding:
    """The finding of a rule that applies; `about` names what it is about: a card, a program."""
    told = _told(rule, facts)
    subjects = [*about, *told]
    what = _EFFECTS[rule.effect]
    named = rule.use or same("")
    return Finding(
        code=rule.id,
        level=level or _LEVELS[rule.effect],
        seen=Text(
            f"{', '.join(s.en for s in subjects)}: {named.en + ' ' if rule.use else ''}{what.en}.",
            f"{'，'.join(s.zh for s in subjects)}：{named.zh}{what.zh}。",
        ),
        why=symptom_after(rule.cause, rule.symptom),
        remedy=rule.remedy,
        source=rule.source,
        command=rule.command,
        evidence=tuple(s.en for s in told),
        share_lost=1.0 if rule.effect == "fails" and rule.use is None else None,
        sure=sureness(rule.confidence),
    )


def symptom_after(cause: Text, symptom: str | None) -> Text:
    """The cause and, where one is known, what the user sees of it, in the program's own words."""
    if not symptom:
        return cause
    return Text(f"{cause.en} What you see: {symptom}", f"{cause.zh}你会看到：{symptom}")


def uses_finding(
    software: str, rules: Sequence[Rule], about: Sequence[Text], facts: Facts
) -> Finding:
    """One note about all uses of a program that do not simply run on a card."""
    effects = [effect for effect in _EFFECTS if any(rule.effect == effect for rule in rules)]
    listed = [_listed(effect, rules) for effect in effects]
    return Finding(
        code=f"{software}.uses",
        level="note",
        seen=Text(
            f"{', '.join(s.en for s in about)}: {'; '.join(s.en for s in listed)}.",
            f"{'，'.join(s.zh for s in about)}：{'；'.join(s.zh for s in listed)}。",
        ),
        why=_joined((rule, symptom_after(rule.cause, rule.symptom)) for rule in rules),
        remedy=_joined((rule, rule.remedy) for rule in rules),
        source="; ".join(dict.fromkeys(rule.source for rule in rules)),
        evidence=tuple(dict.fromkeys(told.en for rule in rules for told in _told(rule, facts))),
    )


def _listed(effect: str, rules: Iterable[Rule]) -> Text:
    uses = [rule.use for rule in rules if rule.effect == effect and rule.use]
    return Text(
        f"{_EFFECTS[effect].en}: {', '.join(use.en for use in uses)}",
        f"{_EFFECTS[effect].zh}：{'、'.join(use.zh for use in uses)}",
    )


def _joined(parts: Iterable[tuple[Rule, Text]]) -> Text:
    """A line for each rule: the use it is about, and the words."""
    pairs = [(rule.use or same(rule.id), words) for rule, words in parts]
    return Text(
        "\n".join(f"{use.en}: {words.en}" for use, words in pairs),
        "\n".join(f"{use.zh}：{words.zh}" for use, words in pairs),
    )


def _told(rule: Rule, facts: Facts) -> list[Text]:
    """What this machine says to the condition of a rule; unknown facts are left out."""
    found = []
    for key, words in _FACTS.items():
        value = rule.when.get(key) if key == "cpu_lacks" else facts.get(key)
        if key in rule.when and isinstance(value, str):
            told = _WORDS.get(value, same(value))
            found.append(Text(words.en.format(told.en), words.zh.format(told.zh)))
    return found
