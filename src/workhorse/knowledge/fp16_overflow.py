"""Models that were seen to leave the range of FP16, where the largest number is 65504."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from workhorse.knowledge.gpus import Capability, Confidence
from workhorse.knowledge.rows import rows
from workhorse.knowledge.versions import Version, version_range
from workhorse.text import Text


@dataclass(frozen=True, slots=True)
class Fp16Overflow:
    """One report; `architectures` as GGUF names them, `name_has` words of the model's name.

    `engine` is where it was seen, `any` for all; `handled`: that engine guards against it.
    """

    id: str
    architectures: tuple[str, ...]
    engine: Literal["any", "llama.cpp", "vllm", "lmdeploy", "transformers"]
    capability: str  # a range: the cards on which it happens
    handled: bool
    symptom: str
    cause_en: str
    cause_zh: str
    remedy_en: str
    remedy_zh: str
    source: str
    date: str
    confidence: Confidence
    name_has: tuple[str, ...] = ()
    refused: bool = False  # the engine does not start with it

    def __post_init__(self) -> None:
        version_range(self.capability)

    def on(self, capability: Capability) -> bool:
        """True when it happens on cards of this compute capability."""
        return version_range(self.capability).holds(Version(capability))

    @property
    def cause(self) -> Text:
        """What happens, and where."""
        return Text(self.cause_en, self.cause_zh)

    @property
    def remedy(self) -> Text:
        """What to do."""
        return Text(self.remedy_en, self.remedy_zh)


@cache
def fp16_overflows() -> tuple[Fp16Overflow, ...]:
    """Every report."""
    return rows("fp16_overflow", "report", Fp16Overflow)


def overflows_of(architecture: str, name: str) -> tuple[Fp16Overflow, ...]:
    """The reports about this model, by its architecture and, where a report is narrower, its name.

    `name_has` is compared with the name's words (split at anything but letters, digits and dots).
    """
    words = _words(name)
    return tuple(
        report
        for report in fp16_overflows()
        if architecture in report.architectures
        and (not report.name_has or words.issuperset(report.name_has))
    )


def _words(name: str) -> frozenset[str]:
    apart = "".join(c if c.isalnum() or c == "." else " " for c in name.casefold())
    return frozenset(apart.split())
