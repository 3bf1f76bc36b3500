"""Bytes, rates and durations as people write them.

Storage and memory sizes are binary (KiB, MiB, GiB), bandwidths decimal (GB/s), as the field
writes them. `None` becomes an em dash: unknown is shown as unknown.
"""

from collections.abc import Callable

KIB = 1024
MIB = 1024**2
GIB = 1024**3
GB = 10**9

UNKNOWN = "—"


def show_bytes(n_bytes: int | float | None) -> str:
    """A size such as `92.1 MiB`; `—` when unknown."""
    if n_bytes is None:
        return UNKNOWN
    for limit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(n_bytes) >= limit:
            return f"{three_digits(n_bytes / limit)} {name}"
    return f"{n_bytes:.0f} B"


def show_bandwidth(bytes_per_s: float | None) -> str:
    """A bandwidth such as `64.8 GB/s` (decimal); `—` when unknown."""
    return UNKNOWN if bytes_per_s is None else f"{three_digits(bytes_per_s / GB)} GB/s"


def show_rate(tokens_per_s: float | None) -> str:
    """A speed such as `110 tok/s`; `—` when unknown."""
    return UNKNOWN if tokens_per_s is None else f"{three_digits(tokens_per_s)} tok/s"


def show_duration(seconds: float | None) -> str:
    """A duration such as `0.84 s`, `35 ms` or `2 min 5 s`; `—` when unknown."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{three_digits(seconds * 1000)} ms"
    if seconds < 60:
        return f"{three_digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def show_share(share: float | None) -> str:
    """A share such as `65 %`; `—` when unknown."""
    return UNKNOWN if share is None else f"{share * 100:.0f} %"


def show_range(value: float, low: float, high: float, show: Callable[[float], str]) -> str:
    """A figure with its least and most: `43.1 (42.8–43.5)`, `52 ms (51 ms–57 ms)`."""
    return f"{show(value)} ({show(low)}–{show(high)})"


def three_digits(value: float) -> str:
    """A figure with about three significant digits and no exponent: 0.84, 12.3, 110."""
    if value == 0:
        return "0"
    size = abs(value)
    return f"{value:.2f}" if size < 10 else f"{value:.1f}" if size < 100 else f"{value:.0f}"
