"""Do three nodes give three times what one gives, where the CPU is not the limit?

    python benchmarks/fleet_scaling.py OUT.json [--seconds 60] [--rounds 3]

Hosts in network namespaces, an engine of told speed on each: 4 slots, 50 ms to the first token and
50 ms a token, whatever runs beside. Clients ask again as soon as they are answered, six for each
node, so that there is always somebody waiting. One node and three in turns; the aim is 2.7.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from batch_rig import machine_words
from fleet_rig import Host, Lab
from fleet_service import Fleet, load
from servers import Others

ENGINE = "--ttft-ms 50 --gap-ms 50"
SLOTS, TOKENS, CLIENTS = 4, 40, 6
AIM = 2.7
WARM_SHARE = 0.15  # of the time, at both ends: what began before or ends after counts by its part


def measure(fleet: Fleet, client: Host, nodes: int, seconds: float) -> dict[str, Any]:
    """Tokens a second of all clients while all of them ask."""
    others = Others.now()
    words = ["--streams", str(CLIENTS * nodes), "--seconds", str(seconds)]
    told = load(client, "closed", fleet, *words, "--tokens", str(TOKENS))
    first_s, last_s = seconds * WARM_SHARE, seconds * (1 - WARM_SHARE)
    tokens = sum(each["tokens"] * share_within(each, first_s, last_s) for each in told)
    return {
        "nodes": nodes,
        "tokens_per_s": tokens / (last_s - first_s),
        "answers": len(told),
        "not whole": [each for each in told if each["outcome"] != "whole"],
        "first_token_p50_s": median(each["first_s"] or seconds for each in told),
        "other_cpus": round(others.cpus_since(), 2),
    }


def share_within(told: dict[str, Any], first_s: float, last_s: float) -> float:
    """Which part of the making of an answer lies between two moments."""
    if told["first_s"] is None:
        return 0.0
    began_s, ended_s = told["sent_s"] + told["first_s"], told["sent_s"] + told["end_s"]
    inside_s = min(ended_s, last_s) - max(began_s, first_s)
    return float(max(0.0, inside_s) / max(ended_s - began_s, 1e-9))


def main() -> int:
    """In turns; 1 when three nodes are not worth 2.7."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for number in range(args.rounds):
        for nodes in ((1, 3), (3, 1))[number % 2]:
            with Lab() as lab:
                fleet = Fleet(lab, engine=ENGINE, nodes=nodes - 1, slots=SLOTS)
                client = lab.host("client")
                fleet.up("--slots", str(SLOTS), "--context", "2048")
                fleet.wait_replicas(nodes)
                rows.append(measure(fleet, client, nodes, args.seconds))
            print(json.dumps(rows[-1] | {"not whole": len(rows[-1]["not whole"])}), flush=True)
    one, three = (
        median(row["tokens_per_s"] for row in rows if row["nodes"] == nodes) for nodes in (1, 3)
    )
    ideal = SLOTS * TOKENS / (0.05 + 0.05 * (TOKENS - 1))
    print(f"one {one:.1f}, three {three:.1f} tok/s: {three / one:.2f} x (one engine: {ideal:.1f})")
    document = {"rows": rows, "ratio": three / one, "machine": machine_words()}
    args.out.write_text(json.dumps(document) + "\n")
    return 0 if three / one >= AIM else 1


if __name__ == "__main__":
    sys.exit(main())
