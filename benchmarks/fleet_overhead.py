"""What does the way through a fleet cost, against the engine of one node asked directly?

    python benchmarks/fleet_overhead.py OUT.json [--engine fake|embedded] [--rounds 10]

Hosts in network namespaces: the head, one node, a client. Direct: the client asks the engine on the
node, over the same cables. Fleet: gateway and HAProxy on the head, the replica and its engine on
the node. Both are up all the time and asked in turns. `fake`: 50 ms to the first token and 20 ms a
token, at 1, 16 and 48 streams; `embedded`: the real engine with the real model at 1 and 4.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from batch_rig import machine_words
from fleet_rig import Host, Lab, wait_until
from fleet_service import ASK_HEALTH, Fleet, load
from servers import Others

FAKE = "--ttft-ms 50 --gap-ms 20"
STREAMS = {"fake": (1, 16, 48), "embedded": (1, 4)}
PORT = 9000


def direct_engine(fleet: Fleet, node: Host, kind: str, slots: int) -> str:
    """The same engine beside the replica's, open to the lab; its URL."""
    if kind == "fake":
        words = ["-m", "workhorse.engines.fake", "--model", "fleet", *FAKE.split()]
        words += ["--slots", str(slots), "--host", node.address, "--port", str(PORT)]
        node.start([sys.executable, *words])
    else:
        argv, env = fleet.engine_start(node)
        argv[argv.index("--host") + 1] = node.address
        argv[argv.index("--port") + 1] = str(PORT)
        node.start(argv, env=env)
    url = f"http://{node.address}:{PORT}"
    asked = [sys.executable, "-c", ASK_HEALTH, f"{url}/health"]
    wait_until(lambda: node.run(asked).returncode == 0, 300, "the engine answers")
    return url


def main() -> int:
    """Both sides in turns; prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--engine", choices=tuple(STREAMS), default="fake")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=60)
    args = parser.parse_args()
    slots = max(STREAMS[args.engine])
    rounds: list[dict[str, Any]] = []
    with Lab() as lab:
        fake = FAKE if args.engine == "fake" else None
        fleet = Fleet(lab, engine=fake, nodes=1, slots=slots)
        client, node = lab.host("client"), fleet.nodes[0]
        # The one replica shall be over there, not beside the gateway.
        fleet.workhorse(fleet.head, "fleet", "drain", fleet.head.name)
        fleet.up("--slots", str(slots), "--context", "1024")
        fleet.wait_replicas(1)
        places = {"direct": direct_engine(fleet, node, args.engine, slots), "fleet": fleet.url}
        for number in range(args.rounds):
            for streams in STREAMS[args.engine]:
                for side in (tuple(places), tuple(places)[::-1])[number % 2]:
                    others = Others.now()
                    words = ["--streams", str(streams), "--tokens", str(args.tokens)]
                    (one,) = load(client, "streams", fleet, *words, url=places[side])
                    rounds.append(
                        {"side": side, "streams": streams, "round": number}
                        | {"others": round(others.cpus_since(), 2), "load": one}
                    )
            print(f"  round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
        fleet.down()
    rows = [row(rounds, side, n) for n in STREAMS[args.engine] for side in places]
    for one in rows:
        print(json.dumps(one))
    document = {"engine": args.engine, "rows": rows, "rounds": rounds, "machine": machine_words()}
    args.out.write_text(json.dumps(document) + "\n")
    return 0


def row(rounds: list[dict[str, Any]], side: str, streams: int) -> dict[str, Any]:
    """First tokens of all streams of all rounds, and the median of the rounds' speed."""
    mine = [one["load"] for one in rounds if (one["side"], one["streams"]) == (side, streams)]
    first_s = sorted(each["first_token_s"] for load in mine for each in load["streams"])
    speeds = [sum(each["chunks"] for each in load["streams"]) / load["took_s"] for load in mine]
    return {
        "streams": streams,
        "side": side,
        "first token p50, ms": round(1000 * median(first_s), 1),
        "first token p95, ms": round(1000 * first_s[int(len(first_s) * 0.95)], 1),
        "tok/s of all": round(median(speeds), 1),
        "other CPUs": median(
            one["others"] for one in rounds if (one["side"], one["streams"]) == (side, streams)
        ),
    }


if __name__ == "__main__":
    sys.exit(main())
