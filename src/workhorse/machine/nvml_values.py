"""Take a value out of what a driver answered; None for whatever is not what it should be. Pure.

Drivers answer all bits set, structures of another version, or nothing for what they don't know.
"""

from typing import Any

from workhorse.machine.kernel_text import NUMBER_MAX, words


def whole(answer: Any, *, high: int = NUMBER_MAX) -> int | None:
    """A whole number from 0 to `high`."""
    if isinstance(answer, bool) or not isinstance(answer, int):
        return None
    return answer if 0 <= answer <= high else None


def text(answer: Any) -> str | None:
    """One printable line."""
    return words(answer) if isinstance(answer, str) else None


def switch(answer: Any) -> bool | None:
    """NVML's disabled (0) or enabled (1)."""
    if isinstance(answer, bool):
        return answer
    return {0: False, 1: True}.get(answer) if isinstance(answer, int) else None


def watts(milliwatts: Any) -> float | None:
    """Watts from milliwatts; 0 is no answer."""
    value = whole(milliwatts, high=10_000_000)
    return value / 1000 if value else None


def part(facts: dict[str, Any], query: str, field: str) -> Any:
    """One field of a structure that a query answered."""
    answer = facts.get(query)
    return answer.get(field) if isinstance(answer, dict) else None


def item(answer: Any, position: int) -> Any:
    """One place of a list."""
    return answer[position] if isinstance(answer, list) and len(answer) > position else None


def base_name(command: Any) -> str | None:
    """The program's name without its folder and arguments: those can name people."""
    line = text(command)
    if line is None or line.startswith("["):  # nvidia-smi's [Not Found] and [N/A]
        return None
    return line.split(" ")[0].rsplit("/", 1)[-1][:64] or None
