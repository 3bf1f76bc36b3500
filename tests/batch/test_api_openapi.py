"""`/openapi.json` has every route of files and batches, and no other."""

from pathlib import Path
from typing import Any

from workhorse.batch.api_openapi import paths
from workhorse.batch.api_routes import ApiRoutes
from workhorse.batch.api_store import ApiStore


def test_every_route_is_described(tmp_path: Path) -> None:
    desk: Any = None
    routes = {(one.method, one.path) for one in ApiRoutes(ApiStore(tmp_path), desk).table()}
    described = {(method.upper(), path) for path, found in paths().items() for method in found}
    assert described == routes
