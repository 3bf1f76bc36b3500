"""A file as a client sends it, to the disk as it comes: never more than a block in memory."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http import HttpProcessingError

from workhorse.batch.api_record import StoredFile
from workhorse.batch.api_refusal import full, wrong
from workhorse.batch.api_store import LEAST_BYTES, ApiStore, new_id, unusable
from workhorse.settings import BatchSettings
from workhorse.units import GIB, MIB

CHUNK_BYTES = 64 * 1024
BLOCK_BYTES = 256 * 1024  # written at a time, off the event loop
PAUSE_S = 30.0  # a client that sends nothing for so long is let go
MOST_PARTS = 16
LONGEST_FIELD_BYTES = 1024
LONGEST_NAME = 255
MOST_AT_ONCE = 32  # uploads, of everybody together
MOST_OF_ONE = 8  # of one owner: a slow client must not take every place
# What a form has beside the file: boundaries, headers, the other fields.
AROUND_BYTES = 1 * MIB
# OpenAI's API reference, Files, `expires_after` (2026-11).
SHORTEST_LIFE_S, LONGEST_LIFE_S = 3600, 2_592_000
DAY_S = 86400.0

Settings = Callable[[], BatchSettings]  # as they are now


class Uploads:
    """Takes files in, within what an owner and everybody may keep."""

    def __init__(self, store: ApiStore, settings: Settings, clock: Callable[[], float]) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._coming_bytes: Counter[str] = Counter()  # by owner, of those under way
        self._under_way: Counter[str] = Counter()  # uploads, by owner

    async def take(self, request: web.Request, owner: str) -> StoredFile:
        """The file that a form brings, kept; raises what the client is to be told."""
        settings = self._settings()
        if request.content_type != "multipart/form-data":
            raise wrong("A file is sent as multipart/form-data.", "file")
        size_bytes, most_bytes = request.content_length or 0, settings.upload_mib * MIB
        if size_bytes > most_bytes + AROUND_BYTES:
            raise web.HTTPRequestEntityTooLarge(most_bytes, size_bytes)
        if self._under_way[owner] >= MOST_OF_ONE or self._under_way.total() >= MOST_AT_ONCE:
            words = f"{self._under_way[owner]} files are being sent with this key already"
            raise web.HTTPTooManyRequests(
                text=f"{words}, {self._under_way.total()} with all keys: wait for the end of one."
            )
        self._under_way[owner] += 1
        try:
            async with asyncio.timeout(settings.upload_s):
                return await self._form(await request.multipart(), owner, settings)
        except TimeoutError as error:
            raise web.HTTPRequestTimeout(text="The file did not arrive in time.") from error
        except (ValueError, AssertionError, RuntimeError, HttpProcessingError) as error:
            raise wrong(f"The form is broken: {error}", "file") from error
        finally:
            self._under_way[owner] -= 1
            if not self._under_way[owner]:
                del self._under_way[owner]

    async def _form(self, form: MultipartReader, owner: str, settings: BatchSettings) -> StoredFile:
        now_unix_s = self._clock()
        file_id = new_id("file-", now_unix_s)
        path, kept = self._store.path(file_id), False
        try:
            with self._counted(owner) as count:
                name, size_bytes, fields = None, 0, dict[str, str]()
                async for part in parts_of(form):
                    if part.name != "file":
                        fields[part.name or ""] = await value_of(part)
                    elif name is not None:
                        raise wrong("A form brings one file.", "file")
                    else:
                        name = shown_name(part.filename)
                        limit = self._limit(owner, settings, await self._held_bytes(owner))
                        size_bytes = await write_part(part, path, count, limit)
                if name is None:
                    raise wrong("Missing required parameter: 'file'.", "file")
                refuse_purpose(fields)
                file = StoredFile(
                    id=file_id,
                    owner=owner,
                    name=name,
                    purpose="batch",
                    size_bytes=size_bytes,
                    created_unix_s=now_unix_s,
                    expires_unix_s=now_unix_s + life_s(fields, settings.keep_days),
                )
                # Others may have come to their end meanwhile.
                self._limit(owner, settings, await self._held_bytes(owner))(size_bytes)
                await asyncio.to_thread(self._store.add_file, file)
                kept = True
                return file
        except (TimeoutError, ConnectionError):  # the client's, not the disk's
            raise
        except OSError as error:
            raise unusable(self._store.folder, error) from error
        finally:
            if not kept:
                path.unlink(missing_ok=True)

    async def _held_bytes(self, owner: str) -> tuple[int, int]:
        return await asyncio.to_thread(self._store.held_bytes, owner)

    def _limit(
        self, owner: str, settings: BatchSettings, held_bytes: tuple[int, int]
    ) -> Callable[[int], None]:
        """Refuses a file that has grown too large, or for which there is no room."""
        own_bytes, every_bytes = held_bytes

        def check(size_bytes: int) -> None:
            if size_bytes > settings.upload_mib * MIB:
                raise web.HTTPRequestEntityTooLarge(settings.upload_mib * MIB, size_bytes)
            if own_bytes + self._coming_bytes[owner] > settings.key_gib * GIB:
                raise full(settings.key_gib)
            if every_bytes + self._coming_bytes.total() > settings.total_gib * GIB:
                raise full(settings.total_gib)

        return check

    @contextmanager
    def _counted(self, owner: str) -> Iterator[Callable[[int], int]]:
        """Counts what an upload brings, against the limits, until it is over."""
        size_bytes = 0
        self._coming_bytes[owner] += LEAST_BYTES

        def count(more_bytes: int) -> int:
            nonlocal size_bytes
            size_bytes += more_bytes
            self._coming_bytes[owner] += more_bytes
            return size_bytes

        try:
            yield count
        finally:
            self._coming_bytes[owner] -= LEAST_BYTES + size_bytes
            if not self._coming_bytes[owner]:
                del self._coming_bytes[owner]


async def parts_of(form: MultipartReader) -> AsyncIterator[BodyPartReader]:
    """The parts of a form, as they come."""
    for _ in range(MOST_PARTS):
        async with asyncio.timeout(PAUSE_S):
            part = await form.next()
        if part is None:
            return
        if not isinstance(part, BodyPartReader):
            raise wrong("A form inside the form is not taken.", None)
        yield part
    raise wrong(f"A form may have {MOST_PARTS - 1} parts.", None)


async def chunks_of(part: BodyPartReader) -> AsyncIterator[bytes]:
    """What a part holds, as it comes."""
    while not part.at_eof():
        async with asyncio.timeout(PAUSE_S):
            chunk = await part.read_chunk(CHUNK_BYTES)
        if chunk:
            yield chunk


async def value_of(part: BodyPartReader) -> str:
    """The value of a field that is no file."""
    found = b""
    async for chunk in chunks_of(part):
        found += chunk
        if len(found) > LONGEST_FIELD_BYTES:
            raise wrong(f"The field {part.name!r} is too long.", part.name)
    return found.decode(errors="replace").strip()


async def write_part(
    part: BodyPartReader,
    path: Path,
    count: Callable[[int], int],
    limit: Callable[[int], None],
) -> int:
    """Write what a part holds to a new file; its size in bytes.

    `count` is told of each further chunk and gives the sum, which `limit` may refuse.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    size_bytes, block = 0, bytearray()
    try:
        async for chunk in chunks_of(part):
            size_bytes = count(len(chunk))
            limit(size_bytes)
            block += chunk
            if len(block) >= BLOCK_BYTES:
                await to_its_end(write_all, handle, bytes(block))
                block.clear()
        await to_its_end(write_all, handle, bytes(block))
        await to_its_end(os.fsync, handle)
    finally:
        os.close(handle)
    return size_bytes


async def to_its_end(work: Callable[..., object], *words: object) -> None:
    """Run work in a thread; cancelled, wait for it first.

    A thread that still writes when its handle is closed would write into another's file.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work, *words))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise


def write_all(handle: int, block: bytes) -> None:
    """Write a whole block."""
    left = memoryview(block)
    while left:
        left = left[os.write(handle, left) :]


def shown_name(sent: str | None) -> str:
    """What a client calls its file, as it may be shown again."""
    name = "".join(letter for letter in sent or "" if letter.isprintable())
    return name[:LONGEST_NAME] or "file"


def refuse_purpose(fields: dict[str, str]) -> None:
    """Files are for batches; whatever else OpenAI has them for is not here."""
    purpose = fields.get("purpose")
    if purpose is None:
        raise wrong("Missing required parameter: 'purpose'.", "purpose")
    if purpose != "batch":
        raise wrong(f"Invalid value: '{purpose[:80]}'. Files here are for 'batch'.", "purpose")


def life_s(fields: dict[str, str], keep_days: float) -> float:
    """How long a file is kept: as its sender wants, at most as the settings have it."""
    most_s = keep_days * DAY_S
    anchor, wanted = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and wanted is None:
        return most_s
    if anchor != "created_at":
        raise wrong("Invalid value: the anchor is 'created_at'.", "expires_after[anchor]")
    if not (wanted or "").isascii() or not (wanted or "").isdigit() or len(wanted or "") > 9:
        raise wrong("Invalid value: a number of seconds is needed.", "expires_after[seconds]")
    seconds = int(wanted or "0")
    if not SHORTEST_LIFE_S <= seconds <= LONGEST_LIFE_S:
        words = f"Invalid value: {SHORTEST_LIFE_S} to {LONGEST_LIFE_S} seconds."
        raise wrong(words, "expires_after[seconds]")
    return min(most_s, float(seconds))
