"""OpenAI's responses: the stream without progress, and one document from its events. Pure."""

from workhorse.serve.figures import Figures, Json
from workhorse.serve.sse import PROGRESS_KEY, EventFilter, split_events

_SAYS = b'.delta"'  # what the type of an event that says something ends in
_LAST = (b"event: response.completed\n", b"event: response.incomplete\n")


class ResponseEvents(EventFilter):
    """Whole events without the progress that nobody asked for."""

    def feed(self, block: bytes) -> bytes:
        """The events that `block` completes; empty when none of them is to be passed on."""
        whole = self._complete(block)
        if PROGRESS_KEY in whole and not self._keep_progress:
            # An event that tells of progress tells of nothing else.
            events = split_events(whole)
            whole = b"".join(event for event in events if PROGRESS_KEY not in event)
        self.started = self.started or _SAYS in whole or response_ends(whole)
        return whole


class ResponseAssembly:
    """Waits for the last event of a stream, which has the whole response."""

    def __init__(self) -> None:
        self.error: Json | None = None
        self.figures = Figures()
        self._response: Json | None = None

    def add(self, event: Json) -> None:
        """Takes in the next event."""
        if event.get("type") == "error" or "error" in event:
            self.error = event if "error" in event else {"error": event}
        elif event.get("type") in ("response.completed", "response.incomplete"):
            self._response = event.get("response")
            self.figures.add(event)

    @property
    def complete(self) -> bool:
        """True when the last event has come."""
        return self._response is not None

    def answer(self) -> Json:
        """The response as llama-server gives it to who wants no stream."""
        response = {**(self._response or {})}
        response["output"] = [
            {"status": "completed", **item} for item in response.get("output") or ()
        ]
        return {"completed_at": response.get("created_at"), **response}


def response_ends(whole: bytes) -> bool:
    """Is the end of the response in a block of whole events?"""
    return any(last in whole for last in _LAST)
