"""The lines of a batch's files: what a request has to be, and how its answer is written. Pure.

The codes of errors are those that OpenAI's API gives (`Batch.errors`), and its clients look for.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from workhorse.batch.api_record import Batch, LineError
from workhorse.batch.item import Item, NewItem
from workhorse.batch.output.lines import Where, openai_line

MOST_ERRORS = 100  # of a file; the rest of a file that is all wrong is not read
LONGEST_ID = 512  # characters of a `custom_id`

# The served model that a name stands for to whoever sent the file; None: there is none.
Resolve = Callable[[str | None], str | None]


class BadFile(Exception):
    """The input cannot be worked on; the errors say why."""

    def __init__(self, errors: tuple[LineError, ...]) -> None:
        super().__init__(errors[0].message)
        self.errors = errors


class Reader:
    """Reads an input's lines one by one; `model` is known once it was read to its end."""

    def __init__(self, endpoint: str, resolve: Resolve, most_requests: int) -> None:
        self.model: str | None = None
        self._endpoint, self._resolve, self._most = endpoint, resolve, most_requests
        self._errors: list[LineError] = []
        self._seen: set[str] = set()
        self._last: tuple[str | None, str | None] | None = None  # a name and its model
        self.count = 0

    def items(self, lines: Iterable[bytes | None]) -> Iterator[NewItem]:
        """Each request as an item; `BadFile` at the end of an input that has errors.

        A line that is `None` was longer than any request may be. Empty lines are left out.
        """
        for number, line in enumerate(lines, 1):
            if line is not None and not line.strip():
                continue
            item = self._item(number, line)
            if item is not None and not self._errors:
                yield item
            if len(self._errors) >= MOST_ERRORS:
                break
        if not self.count and not self._errors:
            self._wrong(None, "empty_file", "The input file has no request.")
        if self._errors:
            raise BadFile(tuple(self._errors))

    def _item(self, number: int, line: bytes | None) -> NewItem | None:
        self.count += 1
        if self.count == self._most + 1:
            words = f"A batch may have {self._most} requests, and this file has more."
            self._wrong(None, "too_many_tasks", words)
            raise BadFile(tuple(self._errors))
        before = len(self._errors)
        found = self._object(number, line)
        if line is None or found is None:
            return None
        custom_id, body = found.get("custom_id"), found.get("body")
        for name in ("custom_id", "method", "url", "body"):
            if found.get(name) is None:
                words = f"Missing required parameter: '{name}'."
                self._wrong(number, "missing_required_parameter", words, name)
        self._check_id(number, custom_id)
        if found.get("method") not in (None, "POST"):
            self._wrong(number, "invalid_method", "The method has to be 'POST'.", "method")
        if found.get("url") not in (None, self._endpoint):
            words = (
                "The URL of this request is not the endpoint of the batch, "
                f"which is '{self._endpoint}'."
            )
            self._wrong(number, "invalid_url", words, "url")
        if body is not None and not isinstance(body, dict):
            self._wrong(number, "invalid_request", "The body has to be a JSON object.", "body")
        elif body is not None:
            self._check_body(number, body)
        if len(self._errors) > before or not isinstance(custom_id, str):
            return None
        return NewItem(
            id=custom_id,
            source=f"line {number}",
            kind="request",
            content=line.decode().strip(),
            media_type="application/json",
        )

    def _object(self, number: int, line: bytes | None) -> dict[str, Any] | None:
        if line is None:
            self._wrong(number, "invalid_request", "This line is larger than a request may be.")
            return None
        try:
            found = msgspec.json.decode(line.decode())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
        words = "This line is not parseable as valid JSON."
        if found is not None:
            words = "This line is not a JSON object."
        self._wrong(number, "invalid_json_line", words)
        return None

    def _check_id(self, number: int, custom_id: Any) -> None:
        if custom_id is None:
            return
        good = isinstance(custom_id, str) and 0 < len(custom_id) <= LONGEST_ID
        if not good:
            words = f"The custom_id has to be a text of 1 to {LONGEST_ID} characters."
            self._wrong(number, "invalid_request", words, "custom_id")
        elif custom_id in self._seen:
            words = (
                "The custom_id of this request is a duplicate of another one's; it has to be "
                "unique in its batch."
            )
            self._wrong(number, "duplicate_custom_id", words, "custom_id")
        else:
            self._seen.add(custom_id)

    def _check_body(self, number: int, body: dict[str, Any]) -> None:
        if body.get("stream"):
            words = "A request of a batch cannot be streamed."
            self._wrong(number, "invalid_request", words, "body.stream")
        named = body.get("model")
        if named is not None and not isinstance(named, str):
            words = "The model has to be a text."
            self._wrong(number, "invalid_request", words, "body.model")
            return
        model = self._model_of(named)
        if model is None and named is None:
            words = "Missing required parameter: 'model'."
            self._wrong(number, "missing_required_parameter", words, "body.model")
        elif model is None:
            words = f"The model '{(named or '')[:80]}' is not served here."
            self._wrong(number, "model_not_found", words, "body.model")
        elif self.model is None:
            self.model = model
        elif model != self.model:
            words = f"This request is for '{model}', those before are for '{self.model}'."
            self._wrong(number, "mismatched_model", words, "body.model")

    def _model_of(self, named: str | None) -> str | None:
        """The served model of that name; asked for once, as long as it is the same."""
        if self._last is None or self._last[0] != named:
            self._last = (named, self._resolve(named))
        return self._last[1]

    def _wrong(self, line: int | None, code: str, message: str, param: str | None = None) -> None:
        self._errors.append(LineError(code=code, message=message, line=line, param=param))


# --- results -------------------------------------------------------------------------------------

# Why a request has no answer where the batch ended before it, in the words of the API.
UNFINISHED = {
    "expired": (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    "cancelled": ("batch_cancelled", "This request was not executed: the batch was cancelled."),
}


def result_line(item: Item, batch: Batch) -> tuple[Where, bytes]:
    """The line of an ended item, and in which of the two files it stands."""
    name = batch.id.removeprefix("batch_")
    if item.state != "cancelled":
        return openai_line(item, name)
    code, message = UNFINISHED[batch.ending or "cancelled"]
    line = {
        "id": f"batch_req_{name}_{item.number}",
        "custom_id": item.id,
        "response": None,
        "error": {"code": code, "message": message},
    }
    return "error", msgspec.json.encode(line) + b"\n"
