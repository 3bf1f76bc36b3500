"""When an engine hangs: requests wait, and it neither computes nor reads. Pure.

A late answer says nothing: a prompt of a hundred thousand tokens on an old CPU keeps an engine
silent for half an hour. But who computes uses a processor, also when a card does the work (each
kernel is launched by the CPU), and who waits for a slow disk reads.
"""

from dataclasses import dataclass

from workhorse.text import Text
from workhorse.units import show_duration

# An engine whose threads wait for a lock or for a card that is gone wakes now and then. One
# that decodes a token every ten seconds uses a whole core and more.
IDLE_SHARE = 0.001


@dataclass(frozen=True, slots=True)
class Vitals:
    """What all processes of an engine together have done and hold."""

    cpu_s: float  # to a hundredth; threads that have ended count
    major_faults: int  # pages that had to be read
    read_bytes: int  # from disks
    held_bytes: int  # memory that comes back when they end; file cache left out
    waiting: int  # connections of clients that are open


class Stillness:
    """How long an engine has shown no sign of life although somebody waits for it."""

    def __init__(self) -> None:
        self._since: tuple[float, Vitals] | None = None
        self.still_s = 0.0
        self.waiting = 0

    def see(self, vitals: Vitals | None, now_s: float) -> float:
        """Take in what was seen at `now_s`; the seconds of stillness up to now."""
        if vitals is None or not vitals.waiting:
            self.forget()
            return 0.0
        self.waiting = vitals.waiting
        if self._since is None or _moved(self._since[1], vitals, now_s - self._since[0]):
            self._since = (now_s, vitals)
        self.still_s = now_s - self._since[0]
        return self.still_s

    def forget(self) -> None:
        """Begin anew: it has shown that it lives."""
        self._since, self.still_s, self.waiting = None, 0.0, 0

    @property
    def reason(self) -> Text:
        """What to tell about an engine that is ended for it."""
        still = show_duration(self.still_s)
        return Text(
            f"It hung: for {still} it neither computed nor read, while {self.waiting} "
            f"{'request' if self.waiting == 1 else 'requests'} waited.",
            f"引擎已挂起：{still}内既未计算也未读取数据，而有 {self.waiting} 个请求在等待。",
        )


def says_at_rest(slots: object) -> bool:
    """Whether an engine's answer on its slots says that none is at work; None: no answer came.

    An engine that answers something else has no slots to tell of, and gets the doubt's benefit.
    """
    if slots is None:
        return False
    if not isinstance(slots, list):
        return True
    return not any(isinstance(slot, dict) and slot.get("is_processing") for slot in slots)


def _moved(before: Vitals, now: Vitals, passed_s: float) -> bool:
    return (
        now.cpu_s - before.cpu_s > IDLE_SHARE * passed_s
        or now.major_faults > before.major_faults
        or now.read_bytes > before.read_bytes
    )
