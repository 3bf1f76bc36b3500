"""Called by `ray start` (RAY_START_HOOK): no server for remote clients, one open port less.

The command line has no word for that: left out, the port is 10001 (ray/scripts/scripts.py of
2.60.0, 2026-11).
"""

from typing import Any


def apply(ray_params: Any, head: bool) -> None:  # noqa: ARG001  (Ray gives both)
    """Take the server out of what is to be started."""
    ray_params.ray_client_server_port = None
