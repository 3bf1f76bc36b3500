"""What a llama-server build understands, from its own `--help`. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workhorse.knowledge.llamacpp_flags import forms

_FLAG = r"--?[A-Za-z][\w-]*"
# `-fa,   --flash-attn [on|off|auto]   set …`: flags, perhaps what the last one takes, then two
# spaces or the end of the line before the explanation.
_OPTION = re.compile(rf"^({_FLAG}(?:,\s*{_FLAG})*)(?: (\S.*?))?(?:\s{{2,}}(.*))?$")
_GONE = "the argument has been removed"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: all its flags, what it takes (None: nothing) and its explanation."""

    flags: tuple[str, ...]
    takes: str | None
    explained: str


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a build understands: flags, and the forms of those that changed between versions."""

    knows: tuple[str, ...]
    forms: tuple[str, ...]


def read_help(text: str) -> list[Option]:
    """The options in a help text; those that only say that they were removed are left out."""
    found: list[Option] = []
    for line in text.splitlines():
        option = _OPTION.match(line)
        if option is not None:
            flags = tuple(re.split(r",\s*", option[1]))
            found.append(Option(flags, option[2], option[3] or ""))
        elif found and line.strip():
            last = found[-1]
            found[-1] = Option(last.flags, last.takes, f"{last.explained} {line.strip()}".strip())
    return [option for option in found if _GONE not in option.explained]


def capabilities(options: Sequence[Option]) -> Capabilities:
    """What these options amount to."""
    knows = {flag for option in options for flag in option.flags}
    return Capabilities(tuple(sorted(knows)), tuple(_forms(options)))


def _forms(options: Sequence[Option]) -> Iterable[str]:
    for form in forms():
        for option in options:
            if form.flag in option.flags and (
                (not form.takes_value or option.takes is not None) and form.says in option.explained
            ):
                yield form.name
                break
