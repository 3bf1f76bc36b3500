"""What a machine without the token gets from a node: every port is tried, as a program of its own.

    python fleet_foreign.py ADDRESS [PATH…]

Prints JSON: each open TCP port with what it says to HTTP requests that bring no key. `gives` is
what came with a 2xx; an empty list is what one wants to see.
"""

import argparse
import asyncio
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field

AT_A_TIME = 200
CONNECT_S = 5.0
ANSWER_S = 10.0
PATHS = (
    "/",
    "/metrics",
    "/-/routes",
    "/-/healthz",
    "/v1/models",
    "/status",
    "/stats",
    "/weights",
    "/api/version",
    "/api/jobs/",
    "/api/v0/nodes",
    "/api/cluster_status",
    "/nodes?view=summary",
    "/logs/",
)


@dataclass(slots=True)
class Open:
    """One port that takes connections."""

    port: int
    says: dict[str, str] = field(default_factory=dict)  # path: status, then the body's beginning
    gives: list[str] = field(default_factory=list)  # paths that were answered with a 2xx


async def is_open(address: str, port: int, turn: asyncio.Semaphore) -> bool:
    """Does anybody take the connection?"""
    async with turn:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(address, port)
            writer.close()
            return True
    return False


async def ask(address: str, port: int, path: str) -> tuple[int | None, str]:
    """The status and the beginning of the body; None: what came is no HTTP, or nothing came."""
    data = b""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(address, port)
            words = f"GET {path} HTTP/1.1\r\nHost: {address}:{port}\r\nConnection: close\r\n\r\n"
            writer.write(words.encode())
            while len(data) < 4096 and (block := await reader.read(4096)):
                data += block
            writer.close()
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/"):
        return None, repr(data[:40]) if data else "nothing"
    return int(head.split()[1]), body[:80].decode(errors="replace")


async def look(address: str, paths: tuple[str, ...]) -> list[Open]:
    """All ports, then all paths of each that is open."""
    turn = asyncio.Semaphore(AT_A_TIME)
    ports = range(1, 65536)
    states = await asyncio.gather(*(is_open(address, port, turn) for port in ports))
    found = [Open(port) for port, state in zip(ports, states, strict=True) if state]
    for one in found:
        for path in paths:
            status, body = await ask(address, one.port, path)
            one.says[path] = body if status is None else f"{status} {body}"
            if status is None:
                break  # it does not speak HTTP
            if status // 100 == 2:
                one.gives.append(path)
    return found


def main() -> None:
    """Look and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("address")
    parser.add_argument("paths", nargs="*")
    args = parser.parse_args()
    found = asyncio.run(look(args.address, (*PATHS, *args.paths)))
    print(json.dumps([asdict(one) for one in found]))


if __name__ == "__main__":
    main()
