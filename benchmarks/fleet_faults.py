"""What clients of a fleet see when its parts fail, under ten requests a second.

    python benchmarks/fleet_faults.py OUT.json [--only NAME…] [--seconds 120] [--rate 10]

Three hosts in network namespaces (`fleet_rig.py`), the head and two nodes, each with an engine of
told speed; a fourth host is the client. One part fails a quarter into each load, and comes back at
half of it where it does not come back by itself. Each request must be answered whole or get an
error with words: `silent` must be 0.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batch_rig import machine_words
from fleet_rig import Host, Lab
from fleet_service import Fleet

HERE = Path(__file__).resolve().parent
CUT_S = 45.0
# An answer takes 0.05 + 19 * 0.05 = 1 s: ten requests a second keep 10 of 24 slots busy.
ENGINE = "--ttft-ms 50 --gap-ms 50"
SLOTS, TOKENS = 8, 20


@dataclass(frozen=True)
class Fault:
    """What fails, and how it is put right; None: it comes back by itself."""

    name: str
    strike: Callable[[Fleet], None]
    repair: Callable[[Fleet], None] | None = None
    after_s: float | None = None  # of the repair, from the strike; None: at half of the load
    replicas_after: int = 3


def kill(host: Host, words: str, what: signal.Signals = signal.SIGKILL) -> None:
    """Kill the newest process of a host whose command line holds `words`."""
    found = host.pids(words)
    if not found:
        raise SystemExit(f"nothing runs on {host.name} that is called {words!r}")
    os.kill(found[-1], what)


def kill_engine(fleet: Fleet) -> None:
    """The engine of a node."""
    kill(fleet.nodes[0], "workhorse.engines.fake")


def kill_replica(fleet: Fleet) -> None:
    """The process of Ray that owns an engine."""
    kill(fleet.nodes[0], "ServeReplica")


def kill_node(fleet: Fleet) -> None:
    """All of a node: as when its power fails."""
    fleet.nodes[1].kill()


def revive_node(fleet: Fleet) -> None:
    """The machine is switched on again, and joins as its unit would have it do."""
    old = fleet.nodes[1]
    fleet.nodes[1] = fleet.new_node(old.name, old.address)
    fleet.join(fleet.nodes[1])


def kill_proxy(fleet: Fleet) -> None:
    """HAProxy on the head."""
    for pid in fleet.head.pids("haproxy -"):
        os.kill(pid, signal.SIGKILL)


def drain(fleet: Fleet) -> None:
    """A node is emptied for maintenance: nothing may be lost."""
    fleet.workhorse(fleet.head, "fleet", "drain", fleet.nodes[0].name)


def undrain(fleet: Fleet) -> None:
    """It serves again."""
    fleet.workhorse(fleet.head, "fleet", "drain", fleet.nodes[0].name, "--undo")


FAULTS = (
    Fault("nothing", lambda _: None),
    Fault("engine killed", kill_engine),
    Fault("replica killed", kill_replica),
    Fault("node killed", kill_node, revive_node),
    Fault("the head's HAProxy killed", kill_proxy),
    Fault("link cut for 45 s", lambda f: f.nodes[0].cut(), lambda f: f.nodes[0].mend(), CUT_S),
    Fault("node drained", drain, undrain),
)


def suffer(fleet: Fleet, client: Host, fault: Fault, seconds: float, rate: float) -> dict[str, Any]:
    """One load with one fault; what became of each request, and when all replicas were back."""
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, str(HERE / "fleet_load.py"), "rate", fleet.url]
        command += ["--rate", str(rate), "--seconds", str(seconds), "--tokens", str(TOKENS)]
        load = client.start(command, env=fleet.client_env, out=said)
        began_s = time.monotonic()
        time.sleep(seconds / 4)
        struck_s = time.monotonic()
        fault.strike(fleet)
        events = [("strike", struck_s - began_s)]
        if fault.repair is not None:
            due_s = struck_s + (seconds / 4 if fault.after_s is None else fault.after_s)
            time.sleep(max(0.0, due_s - time.monotonic()))
            fault.repair(fleet)
            events.append(("repair", time.monotonic() - began_s))
        back_s = fleet.wait_replicas(fault.replicas_after) - struck_s
        load.process.wait()
        said.seek(0)
        told = json.loads(said.read())
    return {"fault": fault.name, "events": events, "whole_again_s": back_s, "requests": told}


def count(one: dict[str, Any]) -> dict[str, Any]:
    """The row of the table."""
    requests = one["requests"]
    outcomes = Counter(each["outcome"] for each in requests)
    errors = Counter(
        each["words"].partition(":")[0]
        for each in requests
        if each["outcome"] in ("refused", "told")
    )
    first = sorted(each["first_s"] for each in requests if each["first_s"] is not None)
    return {
        "fault": one["fault"],
        "sent": len(requests),
        "whole": outcomes["whole"],
        "refused": outcomes["refused"],
        "told": outcomes["told"],
        "cut": outcomes["cut"],
        "silent": outcomes["silent"],
        "errors": dict(errors),
        "longest wait, s": max(each["end_s"] for each in requests),
        "first answer p50, p95, s": [first[len(first) // 2], first[int(len(first) * 0.95)]],
        "all replicas back after, s": round(one["whole_again_s"], 1),
    }


NAMES = ("sent_s", "stream", "first_s", "end_s", "outcome", "words")


def short(one: dict[str, Any]) -> dict[str, Any]:
    """The requests as rows of NAMES instead of documents."""
    return one | {"requests": [[each[name] for name in NAMES] for each in one["requests"]]}


def main() -> int:
    """Each fault on one fleet; 1 when a request got no answer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", choices=[one.name for one in FAULTS])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rate", type=float, default=10.0)
    args = parser.parse_args()
    rows, raw = [], []
    with Lab() as lab:
        fleet = Fleet(lab, engine=ENGINE, nodes=2)
        client = lab.host("client")
        fleet.up("--slots", str(SLOTS), "--context", "2048")
        fleet.wait_replicas(3)
        for fault in FAULTS:
            if args.only and fault.name not in args.only:
                continue
            one = suffer(fleet, client, fault, args.seconds, args.rate)
            rows.append(count(one))
            raw.append(short(one))
            print(json.dumps(rows[-1]), flush=True)
        fleet.down()
    document = {
        "rows": rows,
        "names": NAMES,
        "raw": raw,
        "machine": machine_words(),
    }
    args.out.write_text(json.dumps(document) + "\n")
    return 1 if any(row["silent"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
