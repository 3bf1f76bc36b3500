"""Read what the kernel writes: numbers, sizes, CPU lists, `name: value` lines.

Every function returns None for what it does not understand; no input makes one raise, or makes
its result larger than the bounds below.
"""

import re

# NR_CPUS of every distribution's kernel is at most 8192 (x86 Kconfig, MAXSMP; read 2026-11).
CPUS_MAX = 8192
NUMBER_MAX = 2**63 - 1
_SIZE_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def number(text: str | None, *, high: int = NUMBER_MAX) -> int | None:
    """The whole number from 0 to `high` that `text` is."""
    word = "" if text is None else text.strip()
    # 20 digits hold 2**63; int() of a megabyte of digits would raise.
    if not (0 < len(word) <= 20 and word.isascii() and word.isdigit()):
        return None
    value = int(word)
    return value if value <= high else None


def size_bytes(text: str | None) -> int | None:
    """Bytes of a size such as `35840K`, `32M`, `56320 KB` or `131981020 kB`."""
    match = re.fullmatch(r"(\d{1,18}) ?([KMG]?)B?", (text or "").strip()[:64].upper(), re.ASCII)
    if match is None:
        return None
    value = int(match[1]) * _SIZE_UNITS[match[2]]
    return value if value <= NUMBER_MAX else None


def cpu_list(text: str | None) -> tuple[int, ...] | None:
    """The numbers in a list such as `0-13,28-41`, ascending; an empty list is `()`."""
    if text is None or len(text) > 65536:
        return None
    cpus: set[int] = set()
    listed = 0
    for part in text.strip().split(","):
        if not part.strip():
            continue
        first_text, dash, last_text = part.partition("-")
        first = number(first_text, high=CPUS_MAX - 1)
        last = number(last_text, high=CPUS_MAX - 1) if dash else first
        if first is None or last is None or last < first:
            return None
        # Ranges that repeat would cost minutes, whatever the size of the result.
        listed += last + 1 - first
        if listed > CPUS_MAX:
            return None
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def fields(text: str | None, separator: str = ":") -> dict[str, str]:
    """Name and value of each `name: value` line; the first of equal names counts."""
    values: dict[str, str] = {}
    for line in (text or "").splitlines():
        name, found, value = line.partition(separator)
        if found:
            values.setdefault(name.strip(), value.strip())
    return values


def words(text: str | None, *, longest: int = 200) -> str | None:
    """`text` as one printable line of at most `longest` characters; None when nothing is left.

    Names from files and drivers end in terminals and in JSON: control characters stay out.
    """
    if text is None:
        return None
    line = "".join(c if c.isprintable() else " " for c in text[: 4 * longest])
    return " ".join(line.split())[:longest] or None


def chosen(text: str | None) -> str | None:
    """The word in brackets of a choice such as `always [madvise] never`."""
    match = re.search(r"\[([a-z+_]{1,20})\]", (text or "")[:200])
    return match[1] if match else None
