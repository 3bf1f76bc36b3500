"""`python fake_replica.py HOME SPEC`: a replica on its own, its engine's process id on stdout."""

import asyncio
import sys
from pathlib import Path

from workhorse.codec import from_json
from workhorse.config import Places
from workhorse.fleet.replica_life import Node, ReplicaLife
from workhorse.fleet.spec import ReplicaSpec

NODE = Node("box", "127.0.0.1", "the key")


async def main(home: str, told: ReplicaSpec) -> None:
    life = ReplicaLife(told, Places(Path(home)), NODE, budget_s=0.01)
    await life.start()
    print(life.facts().engine_pid, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1], from_json(ReplicaSpec, Path(sys.argv[2]).read_bytes(), what="spec"))
    )
