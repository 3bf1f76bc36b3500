"""Answers that are no text, seen in the stream as it passes: cheap enough for every block. Pure.

One and the same token, a short cycle of them, "!!!!", "GGGG", NaN, replacement characters: what
llama.cpp's users report of overflowing FP16 kernels, faulty memory and damaged files.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from workhorse.guard.sign import Sign, alarm_finding
from workhorse.knowledge.alarms import alarm_limit
from workhorse.records import EngineReading, Finding
from workhorse.text import Text

# So many pieces of an answer are judged at a time, and so many alike are no sane answer: a client
# rarely asks for a word that often, and then not in every answer.
PIECES = 64
SAME_SHARE = 0.9
CYCLE_MAX = 6
UNREADABLE_SHARE = 0.3
STREAMS_MAX = 1024
EVENTS_MAX = 64  # of one block
# Rules of tables, indents and dot leaders repeat in sane answers.
_RULES = frozenset(" \t\r\n-=_|*.#+~:─━│═·…`")
_KEYS = (b'content":"', b'"text":"', b'"delta":"')
_ID = b'"id":"'
# An engine's ids begin alike (`chatcmpl-`) and differ after it.
_ID_BYTES = 44
# Fewer answers than this say nothing.
ANSWERS_MIN = 3
ANSWERS_LATEST = 8


@dataclass(slots=True)
class Stream:
    """One answer on its way."""

    pieces: list[bytes] = field(default_factory=list)
    bad: int = 0  # batches of pieces that were no text
    judged: int = 0


@dataclass(slots=True)
class Counts:
    """Answers of one engine since the start: no text, text, and what the latest garbage said."""

    garbage: int = 0
    sane: int = 0
    sample: str | None = None


class Named(Protocol):
    """The engine that an answer comes from."""

    @property
    def name(self) -> str:
        """That one alone, of all that serve here."""
        ...


class GarbageTap:
    """Sees every block that goes to a client: `tap(served, block)`.

    It keeps at most 64 pieces of each answer until they are judged, and nothing after that.
    """

    def __init__(self) -> None:
        self.counts: dict[str, Counts] = {}
        self._streams: dict[Hashable, Stream] = {}

    def __call__(self, served: Named, block: bytes) -> None:
        """Look at one block of server-sent events, as it is sent."""
        at = block.find(b'content":"')
        if at >= 0:
            key, start = b'content":"', at + 10
        else:
            for key in _KEYS[1:]:
                at = block.find(key)
                if at >= 0:
                    start = at + len(key)
                    break
            else:
                return
        found = block.find(_ID)
        mark = block[found + 6 : found + _ID_BYTES] if found >= 0 else served.name
        stream = self._streams.get(mark)
        if stream is None:
            stream = self._begin(mark)
        end = block.find(b'"', start)
        stream.pieces.append(block[start:end])
        if block.find(key, end) >= 0:
            self._more(stream, block, key, end)
        if len(stream.pieces) >= PIECES:
            self._judge(served.name, stream)
            if found < 0:
                # Events without an id: answers cannot be told apart, so each batch is one.
                del self._streams[mark]

    def _begin(self, mark: Hashable) -> Stream:
        # Answers shorter than a batch stay: the oldest make room.
        if len(self._streams) >= STREAMS_MAX:
            del self._streams[next(iter(self._streams))]
        stream = self._streams[mark] = Stream()
        return stream

    def _more(self, stream: Stream, block: bytes, key: bytes, end: int) -> None:
        """The further events of a block that holds several."""
        for _ in range(EVENTS_MAX):
            at = block.find(key, end)
            if at < 0:
                return
            end = block.find(b'"', at + len(key))
            stream.pieces.append(block[at + len(key) : end])

    def _judge(self, name: str, stream: Stream) -> None:
        pieces, stream.pieces = stream.pieces, []
        stream.judged += 1
        counts = self.counts.setdefault(name, Counts())
        if is_garbage(pieces):
            stream.bad += 1
            if stream.bad == 1:
                counts.garbage += 1
            text = b"".join(pieces[:16]).decode("utf-8", errors="replace")
            counts.sample = "".join(c if c.isprintable() else "\ufffd" for c in text)[:40]
        elif stream.judged == 1:
            counts.sane += 1


def is_garbage(pieces: list[bytes]) -> bool:
    """True when so many pieces of an answer are no text."""
    distinct = set(pieces)
    if len(distinct) > len(pieces) // 3 and not any(b"\xef\xbf\xbd" in p for p in distinct):
        return False  # most answers end here
    for cycle in range(1, CYCLE_MAX + 1):
        rest = pieces[cycle:]
        same = sum(a == b for a, b in zip(pieces, rest, strict=False))
        if same >= SAME_SHARE * len(rest):
            repeated = b"".join(pieces[-cycle:]).decode("utf-8", errors="replace")
            return any(c not in _RULES for c in repeated.replace("\\n", "").replace("\\t", ""))
    text = b"".join(pieces).decode("utf-8", errors="replace")
    unreadable = sum(c == "\ufffd" or (ord(c) < 32 and c not in "\n\t\r") for c in text)
    return unreadable > UNREADABLE_SHARE * len(text)


class GarbageJudge:
    """Decides over answers, not readings: a client that asks for repetition is no alarm."""

    def __init__(self) -> None:
        self._latest: deque[bool] = deque(maxlen=ANSWERS_LATEST)
        self._seen = (0, 0)

    def look(self, engine: EngineReading) -> Iterator[Sign]:
        """A sign whenever answers came."""
        garbage, sane = engine.garbage_streams, engine.sane_streams
        if garbage is None or sane is None:
            return
        more, well = garbage - self._seen[0], sane - self._seen[1]
        self._seen = (garbage, sane)
        if more <= 0 and well <= 0:
            return
        self._latest.extend([True] * min(more, ANSWERS_LATEST))
        self._latest.extend([False] * min(well, ANSWERS_LATEST))
        bad = sum(self._latest)
        known = len(self._latest)
        yield Sign(
            "live.garbage",
            engine.model_name,
            bad >= ANSWERS_MIN and bad >= alarm_limit("garbage_share") * known,
            lambda: garbage_finding(engine, bad, known),
            at_once=True,
        )


def garbage_finding(engine: EngineReading, bad: int, known: int) -> Finding:
    """The finding for answers that no healthy model gives."""
    sample = engine.garbage_sample or ""
    kind, kind_zh = "no text", "不是文本"
    if "nan" in sample.lower():
        kind, kind_zh = "NaN", "NaN"
    elif len(set(sample)) == 1:
        kind, kind_zh = "one character over and over", "同一字符不断重复"
    return alarm_finding(
        "live.garbage",
        Text(
            f"{bad} of the latest {known} answers of {engine.model_name} are {kind}: {sample!r}.",
            f"{engine.model_name} 最近 {known} 个回答中有 {bad} 个{kind_zh}：{sample!r}。",
        ),
        evidence=(f"{engine.garbage_streams} garbage, {engine.sane_streams} sane since the start",),
        share_lost=1.0,
    )
