"""What runs with what: drivers, toolkits, engines, cards, CPUs and C libraries.

A rule of `compat/*.toml` says under which facts (`when`) something works, works although its
support has ended, falls back to something slower, fails, or is a risk; what the user sees
(`symptom`, in the program's own words), why, and what to do. The keys of `when`:

| key | holds |
|---|---|
| `capability`, `driver`, `kernel`, `toolkit`, `glibc`, `version` | a range: `>=7.0,<7.5`, `=470` |
| `software`, `driver_module`, `build`, `weights`, `model` | a word, or a list: one of them |
| `cpu_lacks` | an instruction set flag that the CPU does not have |

`version` is that of `software`; `build` the CUDA tag of a PyTorch wheel (`cu126`, or `default`);
`weights` is `quantised`, `f16`, `bf16` or `f32`; `model` an architecture as GGUF names it.
`use_en`, `use_zh` name one use of the software that the rule is about; without them it is about
the software as a whole. `about_code`: the rule only tells which machine code a file holds, so who
has looked into the file does not need it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from workhorse.knowledge.gpus import Confidence
from workhorse.knowledge.rows import rows
from workhorse.knowledge.versions import version, version_range
from workhorse.text import Text

TABLES = (
    "driver",
    "toolkit",
    "pytorch",
    "vllm",
    "lmdeploy",
    "sglang",
    "ollama",
    "llama_cpp",
    "system",
)
RANGES = frozenset({"capability", "driver", "kernel", "toolkit", "glibc", "version"})
WORDS = frozenset({"software", "driver_module", "build", "weights", "model"})

# What is known of one case, by the keys of `when`; `cpu_flags` holds the flags of the CPU. A
# key that is not there, or a version that cannot be read, is unknown.
Facts = Mapping[str, str | frozenset[str]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; the columns are explained at the top of this file."""

    id: str
    when: dict[str, str | tuple[str, ...]]
    effect: Literal["works", "ended", "falls back", "fails", "risk"]
    cause_en: str
    cause_zh: str
    remedy_en: str
    remedy_zh: str
    source: str
    date: str
    confidence: Confidence
    symptom: str | None = None
    use_en: str | None = None
    use_zh: str | None = None
    about_code: bool = False
    command: str | None = None

    def __post_init__(self) -> None:
        if not self.when or not self.source or not self.date:
            raise ValueError(f"{self.id}: a rule needs a condition, a source and a date")
        if (self.use_en is None) != (self.use_zh is None):
            raise ValueError(f"{self.id}: the use is named in one language only")
        for key, wanted in self.when.items():
            _check(self.id, key, wanted)

    @property
    def cause(self) -> Text:
        """Why it is so."""
        return Text(self.cause_en, self.cause_zh)

    @property
    def remedy(self) -> Text:
        """What to do."""
        return Text(self.remedy_en, self.remedy_zh)

    @property
    def use(self) -> Text | None:
        """The one use of the software that this is about; None: all of it."""
        return Text(self.use_en, self.use_zh) if self.use_en and self.use_zh else None

    def unknown(self, facts: Facts) -> frozenset[str]:
        """The keys of the condition that `facts` say nothing readable about."""
        return frozenset(key for key in self.when if self._holds(key, facts) is None)

    def applies(self, facts: Facts) -> bool | None:
        """Whether the condition holds; None when that depends on a fact that is not known."""
        answers = [self._holds(key, facts) for key in self.when]
        if False in answers:
            return False
        return None if None in answers else True

    def _holds(self, key: str, facts: Facts) -> bool | None:
        wanted = self.when[key]
        if key == "cpu_lacks":
            flags = facts.get("cpu_flags")
            return None if flags is None else wanted not in flags
        fact = facts.get(key)
        if not isinstance(fact, str):
            return None
        if key in WORDS:
            return fact in ((wanted,) if isinstance(wanted, str) else wanted)
        seen = version(fact)
        return None if seen is None else version_range(str(wanted)).holds(seen)


@cache
def rules() -> tuple[Rule, ...]:
    """All rules; raises `ValueError` when a table of ours is not well-formed."""
    found = tuple(rule for name in TABLES for rule in rows(f"compat/{name}", "rule", Rule))
    ids = [rule.id for rule in found]
    if twice := sorted({each for each in ids if ids.count(each) > 1}):
        raise ValueError(f"rules with one id: {twice}")
    return found


def _check(rule_id: str, key: str, wanted: str | tuple[str, ...]) -> None:
    if key in RANGES:
        if not isinstance(wanted, str):
            raise ValueError(f"{rule_id}: {key} is a range")
        version_range(wanted)
    elif key == "cpu_lacks":
        if not isinstance(wanted, str) or not wanted:
            raise ValueError(f"{rule_id}: {key} is one flag")
    elif key not in WORDS:
        raise ValueError(f"{rule_id}: no fact is called {key}")
    elif not wanted or (not isinstance(wanted, str) and "" in wanted):
        raise ValueError(f"{rule_id}: {key} is empty")
