"""What a key may take in a minute: buckets that fill steadily. Pure."""

from dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """Holds at most what one minute allows; may be overdrawn by what was not foreseen."""

    level: float
    at_s: float

    def lacks_s(self, amount: float, per_minute: int, now_s: float) -> float:
        """Seconds until so much may be taken; 0: now. More than a minute's worth: when full."""
        self.level = min(per_minute, self.level + (now_s - self.at_s) * per_minute / 60)
        self.at_s = now_s
        return max(0.0, (min(amount, per_minute) - self.level) * 60 / per_minute)


class Allowance:
    """The buckets of all keys that have a limit of one kind."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}

    def lacks_s(self, key: str, amount: float, per_minute: int | None, now_s: float) -> float:
        """Seconds until the key may take so much; 0: now, or it has no limit."""
        if per_minute is None:
            self._buckets.pop(key, None)
            return 0.0
        bucket = self._buckets.setdefault(key, Bucket(per_minute, now_s))
        return bucket.lacks_s(amount, per_minute, now_s)

    def take(self, key: str, amount: float) -> None:
        """Take so much; negative: give back. Nothing where there is no limit."""
        if (bucket := self._buckets.get(key)) is not None:
            bucket.level -= amount
