"""What OpenAI's API keeps of a file and of a batch, and how it shows them. Pure.

Source of the fields, states and limits: OpenAI's API reference, Files and Batch, and the types of
`openai` 3.x (2026-11).
"""

from typing import Any, Literal

import msgspec

from workhorse.batch.item import Usage

Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
Purpose = Literal["batch", "batch_output"]
OVER: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
WINDOW = "24h"
WINDOW_S = 24 * 3600.0
# When each state began, under the name that the API has for it.
MOMENTS = (
    "in_progress_at",
    "expires_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a client sent, or that a batch ended with."""

    id: str
    owner: str  # the name of a key; "": nobody's, no key was asked for
    name: str  # as the client called it: shown, never a path
    purpose: Purpose
    size_bytes: int
    created_unix_s: float
    expires_unix_s: float


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch cannot be done; `line` counts from 1, None: it is not about a line."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a batch."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch, from its order to its end."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    created_unix_s: float
    status: Status = "validating"
    moments_unix_s: dict[str, float] = {}  # of `MOMENTS`
    metadata: dict[str, str] | None = None
    model: str | None = None  # the one that is served, once the input was read
    job_id: str | None = None  # in the ledger, as long as requests are left
    output_file_id: str | None = None
    error_file_id: str | None = None
    output_expires_s: float | None = None  # after the files were made
    errors: tuple[LineError, ...] = ()
    counts: RequestCounts = RequestCounts()
    usage: Usage | None = None
    ending: Literal["cancelled", "expired"] | None = None  # it will end so, done or not

    @property
    def over(self) -> bool:
        """Nothing will change any more."""
        return self.status in OVER

    @property
    def expires_unix_s(self) -> float:
        """When what is not answered by then is given up."""
        return self.created_unix_s + WINDOW_S


def enter(batch: Batch, status: Status, now_unix_s: float, **changes: Any) -> Batch:
    """The batch in another state, which begins now."""
    moments = batch.moments_unix_s | {f"{status}_at": now_unix_s}
    return msgspec.structs.replace(batch, status=status, moments_unix_s=moments, **changes)


def cancelling(batch: Batch, now_unix_s: float) -> Batch:
    """The batch on its way to `cancelled`; as it is when it is that already, or writes results."""
    if batch.over or batch.status in ("finalizing", "cancelling"):
        return batch
    return enter(batch, "cancelling", now_unix_s, ending="cancelled")


def accepted(
    batch: Batch, job_id: str, model: str | None, requests: int, now_unix_s: float
) -> Batch:
    """The batch once its input was read; one that is to end meanwhile stays on its way there."""
    counts = msgspec.structs.replace(batch.counts, total=requests)
    batch = msgspec.structs.replace(batch, job_id=job_id, model=model, counts=counts)
    return batch if batch.ending is not None else enter(batch, "in_progress", now_unix_s)


def final_status(batch: Batch, left: int) -> Status:
    """How a batch has ended; `left` requests were not answered."""
    if batch.ending == "cancelled":
        return "cancelled"
    return (
        "expired" if batch.ending == "expired" and (left or batch.job_id is None) else "completed"
    )


def show_file(file: StoredFile) -> dict[str, Any]:
    """A file as the API shows it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": int(file.created_unix_s),
        "expires_at": int(file.expires_unix_s),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def show_batch(batch: Batch) -> dict[str, Any]:
    """A batch as the API shows it."""
    moments = batch.moments_unix_s | {"expires_at": batch.expires_unix_s}
    shown: dict[str, Any] = {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": WINDOW,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": int(batch.created_unix_s),
        "request_counts": batch.counts,
        "metadata": batch.metadata,
    }
    shown |= {name: None if name not in moments else int(moments[name]) for name in MOMENTS}
    if batch.usage is not None:
        shown["usage"] = show_usage(batch.usage)
    return shown


def show_usage(usage: Usage) -> dict[str, Any]:
    """What a batch took, in the API's words; reasoning is counted by no engine here."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }


def show_list(objects: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """One page of a list."""
    return {
        "object": "list",
        "data": objects,
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": more,
    }
