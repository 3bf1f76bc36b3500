"""Several connections that fill one part together."""

import threading
from collections import deque
from queue import Empty, SimpleQueue

from workhorse.models.part_file import CHUNK_BYTES
from workhorse.models.pull_door import Door, Opened
from workhorse.models.pull_part import PIECE_BYTES, PulledPart, Stretch
from workhorse.models.pull_tries import GivenUp, Manner, patiently
from workhorse.models.remote import Interrupted
from workhorse.text import Text
from workhorse.units import GIB

TOLD_BYTES = GIB  # what takes seconds to read and hash


class Changed(Exception):
    """The server has another version than the one whose bytes we have."""


class Crew:
    """Brings what is missing of a part. `mixed` says that another etag was seen on the way."""

    def __init__(self, part: PulledPart, door: Door, manner: Manner) -> None:
        self.mixed = False
        self._part = part
        self._version = part.version
        self._door = door
        self._manner = manner
        self._stretches = deque(part.stretches(manner.connections))
        self._events: SimpleQueue[int | BaseException | None] = SimpleQueue()
        self._stop = threading.Event()

    def bring(self) -> None:
        """Return when all pieces are there; raises what one connection met, or GivenUp."""
        part = self._part
        alive = min(self._manner.connections, len(self._stretches))
        self._tell_progress()
        for _ in range(alive):
            # Daemons: a stalled connection must not hold up the end of the program.
            threading.Thread(target=self._work, daemon=True).start()
        try:
            behind = True  # pieces of an earlier run are hashed while the others come
            while part.done_bytes < (part.size_bytes or 0):
                try:
                    event = self._events.get(block=not behind)
                except Empty:
                    behind = part.hash_next()
                    continue
                if isinstance(event, int):
                    part.note(event)
                    self._tell_progress()
                    behind = True
                    continue
                alive -= 1
                if event is not None and (alive == 0 or not isinstance(event, GivenUp)):
                    raise event
        finally:
            self._stop.set()
        if part.unhashed_bytes > TOLD_BYTES:
            self._manner.tell(
                Text("All of it is here; checking its hash.", "已全部下载，正在核对。")
            )
        while part.hash_next():
            pass

    def _tell_progress(self) -> None:
        self._manner.progress(self._part.done_bytes, self._part.size_bytes)

    def _work(self) -> None:
        """One connection: takes stretches until none is left; what it cannot get others may."""
        outcome: BaseException | None = None
        try:
            while not self._stop.is_set():
                try:
                    stretch = self._stretches.popleft()
                except IndexError:
                    break
                try:
                    self._receive(stretch)
                except GivenUp:
                    self._stretches.append(stretch)
                    raise
        except BaseException as error:  # noqa: BLE001 - it is raised where the pull was asked for
            outcome = error
        self._events.put(outcome)

    def _receive(self, stretch: Stretch) -> None:
        size = self._version.size_bytes or 0

        def ask() -> None:
            with self._door.opened(stretch.at, stretch.end) as answer:
                self._check_same(answer)
                while stretch.at < stretch.end and not self._stop.is_set():
                    chunk = answer.read(min(CHUNK_BYTES, stretch.end - stretch.at))
                    if not chunk:
                        raise Interrupted("the connection ended early")
                    self._part.write(chunk, stretch.at, self._version)
                    before, stretch.at = stretch.at, stretch.at + len(chunk)
                    for piece in range(before // PIECE_BYTES, stretch.at // PIECE_BYTES):
                        self._events.put(piece)
                    if stretch.at == size and size % PIECE_BYTES:
                        self._events.put(size // PIECE_BYTES)

        patiently(ask, self._manner, self._stop, lambda: stretch.at)

    def _check_same(self, answer: Opened) -> None:
        if not answer.ranged:
            raise Interrupted("the server sent the whole file instead of a part")
        known = self._version
        if answer.total_bytes != known.size_bytes:
            raise Changed
        if known.etag and answer.etag and known.etag != answer.etag:
            if known.digest is None:
                raise Changed
            self.mixed = True  # another host of the same file, or another file: the hash decides
