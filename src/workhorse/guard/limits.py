"""What the user sets of the guard, as its pure parts use it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """From which share on something is an alarm, and how many readings it takes."""

    decode_share: float = 0.7  # of the expected speed; below it decode has collapsed
    vram_share: float = 0.9
    disk_free_bytes: int = 2 * 10**9
    raise_after: int = 6  # bad readings …
    of_latest: int = 8  # … of so many
    clear_after: int = 12  # good ones in a row
    repeat_s: float = 600.0  # one alarm is told at most once in this time
    hold_s: float = 3600.0  # how long what the kernel said once stays an alarm
