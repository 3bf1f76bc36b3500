"""OpenAI's `/v1/files` and `/v1/batches`: what each route takes, checks and answers.

Source: OpenAI's API reference, Files and Batch, and the `openai` client 3.x (2026-11).
"""

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from aiohttp import web

from workhorse.batch.api_record import (
    ENDPOINTS,
    OVER,
    WINDOW,
    Batch,
    StoredFile,
    cancelling,
    show_batch,
    show_file,
    show_list,
)
from workhorse.batch.api_refusal import no_batch, no_file, wrong
from workhorse.batch.api_store import ApiStore, new_id
from workhorse.batch.api_upload import LONGEST_LIFE_S, SHORTEST_LIFE_S, Uploads
from workhorse.errors import AppError
from workhorse.serve.auth import ACCESS
from workhorse.serve.door import reads_its_body
from workhorse.serve.refusal import json_response
from workhorse.serve.who import KEY
from workhorse.settings import BatchSettings

MOST_FILES_LISTED, MOST_BATCHES_LISTED, BATCHES_LISTED = 10_000, 100, 20
MOST_METADATA = 16

T = TypeVar("T")


class ExpiresAfter(msgspec.Struct, frozen=True):
    """When the results of a batch are deleted."""

    anchor: str
    seconds: Annotated[int, msgspec.Meta(ge=SHORTEST_LIFE_S, le=LONGEST_LIFE_S)]


Name = Annotated[str, msgspec.Meta(max_length=64)]
Value = Annotated[str, msgspec.Meta(max_length=512)]


class NewBatch(msgspec.Struct, frozen=True):
    """What a client orders a batch with; further fields are passed over."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Annotated[dict[Name, Value], msgspec.Meta(max_length=MOST_METADATA)] | None = None
    output_expires_after: ExpiresAfter | None = None


class Desk(Protocol):
    """The service behind the routes."""

    @property
    def settings(self) -> BatchSettings:
        """The limits as they are now."""
        ...

    @property
    def closed(self) -> AppError | None:
        """Why files and batches cannot be had here; None: they can."""
        ...

    def changed(self) -> None:
        """A batch was ordered or cancelled."""
        ...

    def as_it_is(self, batch: Batch) -> Batch:
        """The batch with the counts of this moment. Blocks."""
        ...


class ApiRoutes:
    """What each route does. A key sees what is its own; without keys everybody sees all."""

    def __init__(self, store: ApiStore, desk: Desk, clock: Callable[[], float] = time.time) -> None:
        self._store, self._desk, self._clock = store, desk, clock
        self._uploads = Uploads(store, lambda: desk.settings, clock)

    def table(self) -> list[web.RouteDef]:
        """The routes."""
        return [
            web.post("/v1/files", self.upload),
            web.get("/v1/files", self.list_files),
            web.get("/v1/files/{file_id}", self.show_one_file),
            web.delete("/v1/files/{file_id}", self.delete_file),
            web.get("/v1/files/{file_id}/content", self.content),
            web.post("/v1/batches", self.create_batch),
            web.get("/v1/batches", self.list_batches),
            web.get("/v1/batches/{batch_id}", self.show_one_batch),
            web.post("/v1/batches/{batch_id}/cancel", self.cancel_batch),
        ]

    # files

    @reads_its_body
    async def upload(self, request: web.Request) -> web.StreamResponse:
        """Take a file in."""
        self._refuse_closed()
        file = await self._uploads.take(request, owner_of(request))
        return json_response(show_file(file))

    async def list_files(self, request: web.Request) -> web.StreamResponse:
        """A page of files."""
        self._refuse_closed()
        query = request.query
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise wrong("Invalid value: 'order' is 'asc' or 'desc'.", "order")
        limit = limit_of(request, MOST_FILES_LISTED, MOST_FILES_LISTED)
        files, more = await self._ask(
            lambda: self._store.files(
                viewer_of(request),
                purpose=query.get("purpose"),
                after=query.get("after"),
                limit=limit,
                oldest_first=order == "asc",
            )
        )
        return json_response(show_list([show_file(one) for one in files], more=more))

    async def show_one_file(self, request: web.Request) -> web.StreamResponse:
        """One file."""
        file = await self._file(request, request.match_info["file_id"])
        return json_response(show_file(file))

    async def delete_file(self, request: web.Request) -> web.StreamResponse:
        """Delete a file."""
        file = await self._file(request, request.match_info["file_id"])
        await self._ask(lambda: self._store.drop_file(file.id))
        return json_response({"id": file.id, "object": "file", "deleted": True})

    async def content(self, request: web.Request) -> web.StreamResponse:
        """What a file holds."""
        file = await self._file(request, request.match_info["file_id"])
        path = self._store.path(file.id)
        if not path.exists():
            raise no_file(file.id)
        # Never a page of its own where a browser opens it.
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Disposition": "attachment",
            "X-Content-Type-Options": "nosniff",
        }
        return web.FileResponse(path, headers=headers)

    # batches

    async def create_batch(self, request: web.Request) -> web.StreamResponse:
        """Order a batch; its input is read afterwards."""
        self._refuse_closed()
        asked = read_order(await request.read())
        file = await self._file(request, asked.input_file_id, "input_file_id")
        if file.purpose != "batch":
            words = "The input of a batch is a file that was sent with the purpose 'batch'."
            raise wrong(words, "input_file_id")
        owner, most = owner_of(request), self._desk.settings.unfinished
        now_unix_s, expires = self._clock(), asked.output_expires_after
        batch = Batch(
            id=new_id("batch_", now_unix_s),
            owner=owner,
            endpoint=asked.endpoint,
            input_file_id=file.id,
            created_unix_s=now_unix_s,
            metadata=asked.metadata,
            output_expires_s=None if expires is None else float(expires.seconds),
        )
        if not await self._ask(lambda: self._store.add_batch(batch, most)):
            words = f"{most} batches are unfinished already: wait for the end of one."
            raise web.HTTPTooManyRequests(text=words)
        self._desk.changed()
        return json_response(show_batch(batch))

    async def list_batches(self, request: web.Request) -> web.StreamResponse:
        """A page of batches, the newest first."""
        self._refuse_closed()
        limit = limit_of(request, BATCHES_LISTED, MOST_BATCHES_LISTED)
        viewer, after = viewer_of(request), request.query.get("after")

        def page() -> tuple[list[Batch], bool]:
            found, more = self._store.batches(viewer, after=after, limit=limit)
            return [self._desk.as_it_is(one) for one in found], more

        batches, more = await self._ask(page)
        return json_response(show_list([show_batch(one) for one in batches], more=more))

    async def show_one_batch(self, request: web.Request) -> web.StreamResponse:
        """One batch."""
        batch = await self._batch(request)
        return json_response(show_batch(await self._ask(lambda: self._desk.as_it_is(batch))))

    async def cancel_batch(self, request: web.Request) -> web.StreamResponse:
        """Have a batch end; what was answered by then is kept."""
        batch = await self._batch(request)
        if batch.status in OVER:
            words = f"Cannot cancel a batch with status '{batch.status}'."
            raise web.HTTPConflict(text=words)
        now_unix_s = self._clock()
        changed = await self._ask(
            lambda: self._store.change(batch.id, lambda one: cancelling(one, now_unix_s))
        )
        self._desk.changed()
        return json_response(show_batch(await self._ask(lambda: self._desk.as_it_is(changed))))

    # inside

    async def _ask(self, what: Callable[[], T]) -> T:
        """Ask the disk, off the event loop."""
        return await asyncio.to_thread(what)

    def _refuse_closed(self) -> None:
        if self._desk.closed is not None:
            raise self._desk.closed

    async def _file(self, request: web.Request, file_id: str, param: str = "id") -> StoredFile:
        self._refuse_closed()
        found = await self._ask(lambda: self._store.file(file_id))
        if found is None or viewer_of(request) not in (None, found.owner):
            raise no_file(file_id, param)
        return found

    async def _batch(self, request: web.Request) -> Batch:
        self._refuse_closed()
        batch_id = request.match_info["batch_id"]
        found = await self._ask(lambda: self._store.batch(batch_id))
        if found is None or viewer_of(request) not in (None, found.owner):
            raise no_batch(batch_id)
        return found


def owner_of(request: web.Request) -> str:
    """Whose what a request makes will be."""
    return request[KEY].name if KEY in request else ""


def viewer_of(request: web.Request) -> str | None:
    """Whose files and batches a request may see; None: everybody's, as no key is asked for."""
    return owner_of(request) if request.app[ACCESS].asks_for_key else None


def limit_of(request: web.Request, default: int, most: int) -> int:
    """How many objects a page may have."""
    told = request.query.get("limit")
    if told is None:
        return default
    if not told.isascii() or not told.isdigit() or len(told) > 9 or not 1 <= int(told) <= most:
        raise wrong(f"Invalid value: 'limit' is a number from 1 to {most}.", "limit")
    return int(told)


def read_order(body: bytes) -> NewBatch:
    """What a client orders; raises what is wrong with it."""
    try:
        asked = msgspec.json.decode(body, type=NewBatch)
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$.")
        raise wrong(f"{said}.", place.rstrip("`") or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise wrong("The request is not parseable as JSON.", None) from error
    if asked.endpoint not in ENDPOINTS:
        words = f"Invalid value: '{asked.endpoint[:80]}'. Served here: {', '.join(ENDPOINTS)}."
        raise wrong(words, "endpoint")
    if asked.completion_window != WINDOW:
        shown = asked.completion_window[:80]
        raise wrong(f"Invalid value: '{shown}'. It has to be '{WINDOW}'.", "completion_window")
    expires: Any = asked.output_expires_after
    if expires is not None and expires.anchor != "created_at":
        words = "Invalid value: the anchor is 'created_at'."
        raise wrong(words, "output_expires_after.anchor")
    return asked
