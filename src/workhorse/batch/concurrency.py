"""How many requests of a job may be under way at a moment. Pure: time is an argument.

As many as were measured to be fastest; less after refusals, and back up slowly; fewer while
people chat. Where all slots are the job's, one request more than slots waits at the service, so
that no slot stands empty while an answer travels.
"""

from dataclasses import dataclass

# Where neither slots nor a measurement are known: few enough for any server, enough to batch.
STREAMS_UNKNOWN = 4
# After a refusal so much is kept; the same burst of refusals cuts once.
KEPT_SHARE = 0.75
BURST_S = 5.0
# One more may be under way after so many answers for each that is.
ANSWERS_A_STEP = 2
# A refusal that does not say when to come back: first so long, each time twice that.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
# Somebody who has read an answer writes the next question: slots stay free that long.
CHAT_STILL_S = 60.0


@dataclass(frozen=True, slots=True)
class Room:
    """What the service offers.

    `best`: the measured number of streams with the most tokens a second; `asked`: the user's own
    limit; `slots`: of all engines that serve the model. None: not known.
    """

    slots: int | None = None
    best: int | None = None
    asked: int | None = None

    @property
    def most(self) -> int:
        """Never more requests at once than this."""
        if self.asked is not None:
            return self.asked
        best = self.best or self.slots or STREAMS_UNKNOWN
        if self.slots is None:
            return best
        return min(best, self.slots) + (best >= self.slots)


class Concurrency:
    """The limit as it moves with what the service says."""

    def __init__(self, room: Room, *, yield_to_chat: bool = False) -> None:
        self.room = room
        self._yields = yield_to_chat
        self._limit = room.most
        self._answers = 0  # since the limit was last moved
        self._cut_s: float | None = None
        self._pause_s = FIRST_PAUSE_S
        self._paused_until_s: float | None = None
        self._chats = 0
        self._chat_seen_s: float | None = None

    def limit(self, now_s: float) -> int:
        """So many may be under way; 0 during a pause, or while people need every slot."""
        if self._paused_until_s is not None and now_s < self._paused_until_s:
            return 0
        chats = self.chats(now_s)
        if not self._yields or not chats:
            return self._limit
        slots = self.room.slots or self.room.most
        # One more than chats stays free: who comes next does not wait for a document's end.
        return min(self._limit, max(0, slots - chats - 1))

    def changes_in_s(self, now_s: float) -> float | None:
        """Seconds until the limit may be another by time alone; None: only by what happens."""
        pause_s = self._paused_until_s - now_s if self._paused_until_s is not None else 0.0
        chat_s = 0.0
        if self._yields and self._chat_seen_s is not None:
            chat_s = self._chat_seen_s + CHAT_STILL_S - now_s
        ahead = [seconds for seconds in (pause_s, chat_s) if seconds > 0]
        return min(ahead, default=None)

    def chats(self, now_s: float) -> int:
        """How many chats have to be reckoned with."""
        if self._chat_seen_s is None or now_s - self._chat_seen_s >= CHAT_STILL_S:
            return 0
        return self._chats

    def chat_seen(self, chats: int, now_s: float) -> None:
        """So many requests of people are under way; those of the last minute count on."""
        if chats > 0:
            self._chats = max(chats, self.chats(now_s))
            self._chat_seen_s = now_s

    def answered(self) -> None:
        """A request was answered: after enough of them one more may be under way."""
        self._pause_s = FIRST_PAUSE_S
        self._answers += 1
        if self._limit < self.room.most and self._answers >= ANSWERS_A_STEP * self._limit:
            self._limit += 1
            self._answers = 0

    def refused(self, retry_after_s: float | None, now_s: float) -> None:
        """The service has no room now: wait as long as it says, and come back with less."""
        if self._cut_s is None or now_s - self._cut_s >= BURST_S:
            self._cut_s = now_s
            self._limit = max(1, min(self._limit - 1, int(self._limit * KEPT_SHARE)))
            self._answers = 0
            pause_s = self._pause_s if retry_after_s is None else retry_after_s
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
        else:
            pause_s = retry_after_s or 0.0
        until_s = now_s + max(0.0, min(pause_s, LONGEST_PAUSE_S))
        self._paused_until_s = max(self._paused_until_s or until_s, until_s)
