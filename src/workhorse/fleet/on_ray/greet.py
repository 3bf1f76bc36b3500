"""Asks a head who it is, before anything is started: python -m workhorse.fleet.on_ray.greet ADDRESS

Prints one line of JSON for `fleet.greeting`. A process of its own: Ray reads its environment when
it is imported, and its client ends the process that it runs in when a call goes wrong in C++.
"""

import json
import sys
from typing import Any

import ray
from ray._common.usage.usage_lib import get_cluster_metadata
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
from ray._raylet import GcsClient

ANSWER_WITHIN_S = 15.0


def main() -> int:
    """Ask, and print what was said."""
    sys.stdout.write(json.dumps(ask(sys.argv[1])) + "\n")
    return 0


def ask(address: str) -> dict[str, Any]:
    """The head's versions and nodes; or the error in Ray's words."""
    try:
        ensure_token_if_auth_enabled(create_token_if_missing=False)
        client = GcsClient(address=address)
        told = get_cluster_metadata(client)
        nodes = client.get_all_node_info(timeout=ANSWER_WITHIN_S)
    except ray.exceptions.AuthenticationError as error:
        return {"refused": True, "said": str(error)}
    except (ray.exceptions.RayError, RuntimeError, OSError, ValueError, AttributeError) as error:
        return {"refused": False, "said": f"{type(error).__name__}: {error}"}
    return {
        "ray": told["ray_version"],
        "python": told["python_version"],
        "nodes": [
            {
                "name": node.node_name,
                "address": node.node_manager_address,
                "head": node.is_head_node,
                "alive": node.state == 0,  # GcsNodeInfo.ALIVE
                "labels": dict(node.labels),
            }
            for node in nodes.values()
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
