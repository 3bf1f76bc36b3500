"""How llama-server is told the settings whose spelling changed between versions."""

from collections.abc import Collection
from dataclasses import dataclass

from workhorse.knowledge.rows import rows

# Tokens are chosen on the device that has the logits (since December 2025; "experimental" in the
# help of 0c1e570, 2026-10-01). A request with a grammar goes without, and says so in the log.
CARD_SAMPLING = "--backend-sampling"


@dataclass(frozen=True, slots=True)
class Form:
    """What some builds do with a flag that others use in another way."""

    name: str
    flag: str
    source: str
    date: str
    takes_value: bool = False
    says: str = ""  # a word in its explanation; "": none is looked for


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way to say a setting with a value; see llamacpp_flags.toml."""

    setting: str
    value: str
    flag: str
    words: tuple[str, ...]
    source: str
    date: str
    form: str = ""


def forms() -> tuple[Form, ...]:
    """The forms that are known."""
    return rows("llamacpp_flags", "form", Form)


def spellings(setting: str) -> tuple[Spelling, ...]:
    """The ways to say a setting, the one to prefer first."""
    found = rows("llamacpp_flags", "spelling", Spelling)
    return tuple(row for row in found if row.setting == setting)


def spell(
    setting: str, value: str, knows: Collection[str], has: Collection[str]
) -> tuple[str, ...] | None:
    """The words for a build that knows these flags and has these forms.

    Empty: it does so by itself. None: this build cannot be told.
    """
    for row in spellings(setting):
        if (
            row.value in ("*", value)
            and (not row.flag or row.flag in knows)
            and (not row.form or row.form in has)
        ):
            return tuple(word.format(value) for word in row.words)
    return None
