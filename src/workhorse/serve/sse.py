"""Server-sent events as bytes: whole events, and the engine's progress events taken out. Pure.

The hot path looks at bytes only. A key in its quotes cannot occur inside a JSON string, where
quotes are escaped, so a search for it decides safely what is worth parsing.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

PROGRESS_KEY = b'"prompt_progress"'
NO_CHOICES = b'"choices":[]'
DONE = b"[DONE]"

# A blank line ends an event; lines end with LF, CRLF or CR (HTML standard, 9.2.5).
_BLANK_LINE = re.compile(rb"\n\r?\n|\r\r")
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventFilter:
    """Whole events, byte for byte, without the progress events that nobody asked for.

    Feed it what the engine sent, in blocks of any size. Each answer holds only whole events,
    as soon as they are whole: a stream that is cut never ends in half an event. `started` turns
    true with the first event that is neither progress nor a comment. Without `keep_usage` the
    event that carries figures and no choice is kept in `usage` and not passed on.
    """

    def __init__(self, *, keep_progress: bool, keep_usage: bool = True) -> None:
        self.started = False
        self.usage = b""
        self._keep_progress = keep_progress
        self._keep_usage = keep_usage
        self._rest = bytearray()

    def feed(self, block: bytes) -> bytes:
        """The events that `block` completes; empty when none of them is to be passed on."""
        whole = self._complete(block) if self._rest or not block.endswith(b"\n\n") else block
        if PROGRESS_KEY in whole:
            kept = [without_progress(event) for event in split_events(whole)]
            self.started = self.started or any(b"data:" in event for event in kept)
            return whole if self._keep_progress else b"".join(kept)
        if not self.started:
            self.started = b"data:" in whole
        if not self._keep_usage and NO_CHOICES in whole:
            return self._without_usage(whole)
        return whole

    def _without_usage(self, whole: bytes) -> bytes:
        kept = []
        for event in split_events(whole):
            if NO_CHOICES in event and b'"usage"' in event:
                self.usage = event
            else:
                kept.append(event)
        return b"".join(kept)

    def _complete(self, block: bytes) -> bytes:
        """The whole events in what was left over and `block`; the new rest is kept."""
        rest = self._rest
        # The blank line may lie across the seam. Searching only from just before it keeps an
        # event of many megabytes linear.
        seam = max(0, len(rest) - 2)
        rest += block
        end = max(
            (
                at + len(line)
                for line in (b"\n\n", b"\n\r\n", b"\r\r")
                if (at := rest.rfind(line, seam)) >= 0
            ),
            default=0,
        )
        whole = bytes(rest[:end])
        del rest[:end]
        return whole


def split_events(whole: bytes) -> Iterator[bytes]:
    """Each event of a block of whole events, with the blank line that ends it."""
    start = 0
    for blank in _BLANK_LINE.finditer(whole):
        yield whole[start : blank.end()]
        start = blank.end()
    if start < len(whole):
        yield whole[start:]


def event_data(event: bytes) -> bytes | None:
    """What an event carries: its data lines, joined; None for a comment or an empty event."""
    lines = [
        line[5:].removeprefix(b" ") for line in _LINE_END.split(event) if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None


def parse_object(data: bytes | None) -> dict[str, Any] | None:
    """The JSON object in an event's data; None for anything else, `[DONE]` included."""
    if data is None:
        return None
    try:
        found = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None


def without_progress(event: bytes) -> bytes:
    """The event as it would be had nobody asked for progress: unchanged, less, or nothing.

    A progress event carries an empty delta, except in one case: when an answer continues the
    client's own words with `echo`, the first one carries those words and must stay.
    """
    found = parse_object(event_data(event)) if PROGRESS_KEY in event else None
    if found is None or "prompt_progress" not in found:
        return event
    if not any(_has_content(choice) for choice in found.get("choices", ())):
        return b""
    del found["prompt_progress"]
    return b"data: " + msgspec.json.encode(found) + b"\n\n"


def _has_content(choice: dict[str, Any]) -> bool:
    """Does a choice of a chunk say anything beyond the role?"""
    delta = choice.get("delta") or {}
    said = any(value for key, value in delta.items() if key != "role")
    return bool(said or choice.get("text") or choice.get("finish_reason"))
