"""A running `fleet up` seen from another command of the same machine: asked, and told to drain."""

import http.client
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlencode

import msgspec

from workhorse.codec import from_json
from workhorse.config import Places
from workhorse.fleet.commands import DRAIN_PATH, FLEET_PATH
from workhorse.fleet.status import FleetStatus
from workhorse.run.run_file import ServiceFile
from workhorse.up.outside import (
    ANSWER_WITHIN_S,
    LARGEST_BYTES,
    connected,
    lost,
    refused,
    services,
    spoken_for,
)


def running_fleet(where: Places) -> ServiceFile | None:
    """The `fleet up` of this user that lives here; None: there is none."""
    return next((file for file in services(where) if _is_fleet(file)), None)


def _is_fleet(file: ServiceFile) -> bool:
    """Whether a service has a fleet behind it: only such a one knows the page."""
    status, _ = _get(file)
    return status in (200, 503)


def fleet_of(file: ServiceFile) -> FleetStatus | None:
    """How the fleet is; None while it is still being planned."""
    status, document = _get(file)
    return from_json(FleetStatus, document, what="fleet status") if status == 200 else None


def _get(file: ServiceFile) -> tuple[int | None, bytes]:
    try:
        with closing(connected(file, ANSWER_WITHIN_S)) as connection:
            connection.request("GET", FLEET_PATH, headers=spoken_for(file))
            answer = connection.getresponse()
            return answer.status, answer.read(LARGEST_BYTES)
    except (OSError, http.client.HTTPException):
        return None, b""


def drain(file: ServiceFile, node: str, *, undo: bool) -> Iterator[dict[str, Any]]:
    """Have a node drained; each thing that is done as it comes: `stage`, then `done` or `error`."""
    query = urlencode({"node": node} | ({"undo": "1"} if undo else {}))
    try:
        with closing(connected(file, None)) as connection:
            connection.request("POST", f"{DRAIN_PATH}?{query}", b"", spoken_for(file))
            answer = connection.getresponse()
            if answer.status != 200:
                raise refused(file, answer.status, answer.read(2000).decode(errors="replace"))
            while line := answer.readline(LARGEST_BYTES):
                yield msgspec.json.decode(line)
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise lost(file, error) from error
