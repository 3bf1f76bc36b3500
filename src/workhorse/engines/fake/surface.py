"""A response surface for the fake engine: how fast, or how broken, it is with which settings.

Rules in a JSON file: `{"rules": [{"when": {"--threads": "2"}, "speed_times": 1.25}, …]}`. Each rule
whose settings were all told applies; factors multiply, so one rule with two settings is an
interaction and one with 0.1 a cliff. A setting without dashes is a variable of the environment.
Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from workhorse.engines.fake.decode import Behaviour

Fault = Literal["die", "out of memory", "hang", "garbage", "other words", "die later", "stall"]

# What llama-server 0.5.0 writes when main memory does not hold the weights (tried, 2026-11).
OUT_OF_MEMORY = (
    "0.00.051.204 E ggml_aligned_malloc: insufficient memory (attempted to allocate 9216.00 MB)",
    "0.00.051.260 E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size "
    "9663676416",
    "0.00.051.311 E llama_init_from_model: failed to initialize the context: failed to allocate "
    "buffer for kv cache",
)
FAULT_AFTER_TOKENS = 60  # later than the first answer that an engine is judged by


@dataclass(frozen=True, slots=True)
class Rule:
    """What follows from some settings that were told together."""

    when: dict[str, str]
    speed_times: float = 1.0
    does: Fault | None = None


@dataclass(frozen=True, slots=True)
class Surface:
    """All rules of one engine."""

    rules: tuple[Rule, ...] = ()

    def applying(self, told: Mapping[str, str]) -> tuple[Rule, ...]:
        """The rules whose settings were all told."""
        return tuple(rule for rule in self.rules if rule.when.items() <= told.items())

    def faults(self, told: Mapping[str, str]) -> tuple[Fault, ...]:
        """What is to go wrong with these settings."""
        return tuple(rule.does for rule in self.applying(told) if rule.does is not None)

    def behaviour(self, plain: Behaviour, told: Mapping[str, str]) -> Behaviour:
        """The told behaviour with these settings."""
        times = 1.0
        for rule in self.applying(told):
            times *= rule.speed_times
        faults = self.faults(told)
        return replace(
            plain,
            gap_s=plain.gap_s / times,
            prefill_s_per_token=plain.prefill_s_per_token / times,
            hang=plain.hang or "hang" in faults,
            garbage=plain.garbage or "garbage" in faults,
            seed=plain.seed + ("other words" in faults),
            die_after_tokens=FAULT_AFTER_TOKENS
            if "die later" in faults
            else plain.die_after_tokens,
            stall_after_tokens=FAULT_AFTER_TOKENS if "stall" in faults else None,
        )


def read_surface(document: str) -> Surface:
    """The surface in a JSON document; ValueError when it is none."""
    return msgspec.json.decode(document, type=Surface)


def told_settings(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Each long option with the word behind it (none: an empty one), and the environment."""
    told = dict(environ)
    for place, word in enumerate(argv):
        if word.startswith("--"):
            after = argv[place + 1] if place + 1 < len(argv) else ""
            told[word] = "" if after.startswith("--") else after
    return told
