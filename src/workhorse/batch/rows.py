"""Rows of the ledger as the records that the rest of `batch` reads, and back. Pure."""

import zlib
from typing import Any

import msgspec

from workhorse.batch.item import Item, Reason, Result, Usage
from workhorse.batch.job import Counts, Job, JobRecord

# Of an item, in the order in which `item_of` wants them; the large ones are read one at a time.
ITEM_COLUMNS = (
    "key, number, id, source, kind, media_type, state, attempts, prompt_tokens, cached_tokens, "
    "output_tokens, requests, reason"
)
JOB_COLUMNS = "number, id, document, state, cancelling, created_unix_s, ended_unix_s, extra"
PACK_LEVEL = 1  # texts become a third as large at 60 MB/s (2026-11); more costs more than it saves


def packed(data: bytes) -> bytes:
    """Bytes as they are kept."""
    return zlib.compress(data, PACK_LEVEL)


def unpacked(data: bytes) -> bytes:
    """The bytes that were kept."""
    return zlib.decompress(data)


def item_of(row: tuple[Any, ...], content: bytes | None, result: bytes | None) -> Item:
    """An item; `content` and `result` packed, None where they are not wanted or not there."""
    _, number, name, source, kind, media_type, state, attempts, *counted, reason = row
    prompt_tokens, cached_tokens, output_tokens, requests = counted
    return Item(
        number=number,
        id=name,
        source=source,
        kind=kind,
        content="" if content is None else unpacked(content).decode(),
        media_type=media_type,
        state=state,
        attempts=attempts,
        usage=Usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            output_tokens=output_tokens,
            requests=requests,
        ),
        result=None if result is None else msgspec.json.decode(unpacked(result), type=Result),
        reason=None if reason is None else msgspec.json.decode(reason, type=Reason),
    )


def job_of(row: tuple[Any, ...], counts: Counts) -> JobRecord:
    """A job with the counts of its items."""
    _, name, document, state, cancelling, created_unix_s, ended_unix_s, extra = row
    return JobRecord(
        id=name,
        job=msgspec.json.decode(document, type=Job),
        state=state,
        cancelling=bool(cancelling),
        created_unix_s=created_unix_s,
        ended_unix_s=ended_unix_s,
        counts=counts,
        extra=msgspec.json.decode(extra),
    )


def content_bytes(content: str) -> bytes:
    """A text as bytes; half a surrogate pair, which no engine takes, becomes a question mark."""
    return content.encode("utf-8", "replace")


def clean(words: str) -> str:
    """Words that SQLite takes: half a surrogate pair, from the name of a file, is written out."""
    return words.encode("utf-8", "backslashreplace").decode()


def figures(usage: Usage | None) -> tuple[int, int, int, int]:
    """What is added to an item's columns, in their order."""
    if usage is None:
        return 0, 0, 0, 0
    return usage.prompt_tokens, usage.cached_tokens, usage.output_tokens, usage.requests


def encoded(reason: Reason) -> str:
    """A reason as it is kept."""
    plain = Reason(cause=reason.cause, seen=clean(reason.seen), seen_zh=clean(reason.seen_zh))
    return msgspec.json.encode(plain).decode()
