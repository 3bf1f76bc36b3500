"""How vLLM and LMDeploy are told the settings whose spelling changed between versions."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way to say a setting with a value; see engine_options.toml."""

    engine: Literal["vllm", "lmdeploy"]
    setting: str
    value: str
    option: str
    source: str
    date: str
    words: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """What a setting becomes: words of the command line, and variables."""

    words: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


def spellings() -> tuple[Spelling, ...]:
    """Every row, the one to prefer first."""
    return rows("engine_options", "spelling", Spelling)


def spell(engine: str, setting: str, value: str, knows: Collection[str]) -> Said | None:
    """How a build that knows these options is told; None: it cannot be told.

    Empty: it does so by itself.
    """
    for row in spellings():
        if (
            (row.engine, row.setting) == (engine, setting)
            and row.value in ("*", value)
            and (not row.option or row.option in knows)
        ):
            pairs = (variable.format(value).partition("=") for variable in row.environment)
            return Said(
                tuple(word.format(value) for word in row.words),
                tuple((name, content) for name, _, content in pairs),
            )
    return None
