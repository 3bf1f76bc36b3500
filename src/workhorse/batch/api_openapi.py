"""What `/openapi.json` says of files and batches. Pure."""

from typing import Any

from workhorse.batch.api_record import ENDPOINTS, WINDOW
from workhorse.serve.figures import Json
from workhorse.serve.openapi import OBJECT, TEXT, Paths, get_route, object_of, post_route

LIMIT: Json = {"type": "integer", "minimum": 1, "maximum": 100}
FILE: Json = {"type": "object", "required": ["id", "bytes", "filename", "purpose", "status"]}
BATCH: Json = {"type": "object", "required": ["id", "status", "request_counts", "errors"]}
LIST: Json = {"type": "object", "required": ["data", "has_more"]}


def paths() -> Paths:
    """The routes of files and batches."""
    return {**_files(), **_batches()}


def _files() -> Paths:
    purpose = {"name": "purpose", "in": "query", "schema": TEXT}
    order = {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"]}}
    upload = post_route("A file for a batch, kept", OBJECT, FILE)
    sent = object_of(
        {"file": {"type": "string", "format": "binary"}, "purpose": {"enum": ["batch"]}},
        "file",
        "purpose",
    )
    upload["post"]["requestBody"]["content"] = {"multipart/form-data": {"schema": sent}}
    content = _named("file_id", get_route("What a file holds", OBJECT))
    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    content["get"]["responses"]["200"]["content"] = binary
    one = _named("file_id", get_route("A file", FILE))
    gone: Json = {"type": "object", "required": ["id", "deleted"]}
    deleted: Any = get_route("The file is deleted", gone)["get"]
    return {
        "/v1/files": upload | _listed("The files, a page of them", purpose, order),
        "/v1/files/{file_id}": one | _named("file_id", {"delete": deleted}),
        "/v1/files/{file_id}/content": content,
    }


def _batches() -> Paths:
    asked = object_of(
        {
            "input_file_id": TEXT,
            "endpoint": {"enum": list(ENDPOINTS)},
            "completion_window": {"enum": [WINDOW]},
            "metadata": {"type": ["object", "null"], "additionalProperties": TEXT},
        },
        "input_file_id",
        "endpoint",
        "completion_window",
    )
    cancel = post_route("The batch ends; what was answered by then is kept", OBJECT, BATCH)
    del cancel["post"]["requestBody"]
    return {
        "/v1/batches": post_route("Requests that are answered within a day", asked, BATCH)
        | _listed("The batches, a page of them"),
        "/v1/batches/{batch_id}": _named("batch_id", get_route("A batch", BATCH)),
        "/v1/batches/{batch_id}/cancel": _named("batch_id", cancel),
    }


def _listed(what: str, *more: Json) -> Json:
    route = get_route(what, LIST)
    page = [
        {"name": "limit", "in": "query", "schema": LIMIT},
        {"name": "after", "in": "query", "schema": TEXT},
    ]
    route["get"]["parameters"] = [*page, *more]
    return route


def _named(name: str, route: Json) -> Json:
    (method,) = route
    schema = {**TEXT, "minLength": 1}
    named = {"name": name, "in": "path", "required": True, "schema": schema}
    return {method: {**route[method], "parameters": [named]}}
