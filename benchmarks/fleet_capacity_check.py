"""Does the simulated queue of `fleet plan` foresee what a real fleet does?

    python benchmarks/fleet_capacity_check.py OUT.json [--seconds 90]
    python benchmarks/fleet_capacity_check.py OUT.json --from TOLD.json --status STATUS.json

Runs a head and a node in network namespaces, each with an engine of told speed (4 slots, 50 ms to
the first token, 40 ms a token and a tenth more for each further stream), under Poisson arrivals of
answers of 5 to 200 tokens at half, four fifths and nine tenths of what they can do. The same
arrivals and lengths then go through the simulation, with the decode speeds that the replicas had
measured of themselves. Printed: what was seen, what was foreseen, and Erlang's formulae.

`--from`: requests that another benchmark has stored (a list as `fleet_load.py` prints it, or a
document with such a list under `told` or `requests`), and `fleet status --json` of that fleet.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from batch_rig import machine_words
from fleet_load import Told, body_of, one
from workhorse.codec import from_json
from workhorse.fleet.boxes import boxes_of_status
from workhorse.fleet.capacity import groups_of
from workhorse.fleet.queue_formulae import Moments, fleet_line
from workhorse.fleet.queue_simulation import Group, Requests, Rules, simulate
from workhorse.fleet.replica_speeds import Speeds
from workhorse.fleet.status import FleetStatus

SLOTS, TTFT_S, GAP_S, SLOWDOWN = 4, 0.05, 0.04, 0.1
ENGINE = f"--ttft-ms {TTFT_S * 1000} --gap-ms {GAP_S * 1000} --batch-slowdown {SLOWDOWN}"
MEAN_TOKENS, LEAST_TOKENS, MOST_TOKENS = 40, 5, 200
NODES = 2
SHARES = (0.5, 0.8, 0.9)


def capacity_per_s() -> float:
    """Requests a second that all slots together can answer."""
    step_s = GAP_S * (1 + SLOWDOWN * (SLOTS - 1))
    return NODES * SLOTS / (TTFT_S + (MEAN_TOKENS - 1) * step_s)


async def client(args: argparse.Namespace) -> None:
    """Poisson arrivals from a seed; prints how each ended."""
    chance = random.Random(args.seed)
    at_s, plan = 0.0, []
    while (at_s := at_s + chance.expovariate(args.rate)) < args.seconds:
        tokens = round(chance.expovariate(1 / (MEAN_TOKENS - LEAST_TOKENS))) + LEAST_TOKENS
        plan.append((at_s, min(MOST_TOKENS, tokens)))
    headers = {"Authorization": f"Bearer {os.environ['WORKHORSE_KEY']}"}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(
        args.client, headers=headers, timeout=timeout, connector=connector
    ) as http:
        began_s = time.monotonic()
        tasks: list[asyncio.Task[Told]] = []
        for number, (due_s, tokens) in enumerate(plan):
            await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
            body = body_of(number, "fleet", tokens) | {"stream": True}
            tasks.append(asyncio.create_task(one(http, body, began_s, 600.0)))
        told = await asyncio.gather(*tasks)
    print(json.dumps([asdict(each) for each in told]))


def measure(seconds: float) -> dict[str, Any]:
    """A real fleet under each load; what it said of itself and how each request ended."""
    from fleet_rig import Lab
    from fleet_service import Fleet

    with Lab() as lab:
        fleet = Fleet(lab, engine=ENGINE, nodes=NODES - 1, slots=SLOTS)
        host = lab.host("client")
        fleet.up("--slots", str(SLOTS), "--context", "2048")
        fleet.wait_replicas(NODES)
        status = fleet.status()
        loads = []
        for seed, share in enumerate(SHARES):
            rate = share * capacity_per_s()
            words = ["--client", fleet.url, "--rate", str(rate), "--seconds", str(seconds)]
            command = [sys.executable, __file__, *words, "--seed", str(seed)]
            done = host.run(command, env=fleet.client_env, timeout_s=3600)
            if done.returncode != 0:
                raise SystemExit(done.stderr[-2000:])
            loads.append({"share": share, "rate": rate, "told": json.loads(done.stdout)})
            print(f"{share:.0%}: {len(loads[-1]['told'])} requests", file=sys.stderr, flush=True)
    return {"status": status, "loads": loads, "machine": machine_words()}


def groups_from(status: FleetStatus) -> list[Group]:
    """The replicas by what they measured of themselves; the first token as the engine is told."""
    found = groups_of(boxes_of_status(status).boxes)
    return [
        Group(Speeds(one.speeds.slots, 1 / TTFT_S, one.speeds.step_s), one.replicas)
        for one in found
    ]


def foreseen(groups: Sequence[Group], told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What was seen of a load, and what the simulation says of the same requests."""
    whole = sorted((t for t in told if t["outcome"] == "whole"), key=lambda t: float(t["sent_s"]))
    streamed = np.array([bool(t["stream"]) for t in whole])
    requests = Requests(
        np.array([float(t["sent_s"]) for t in whole]),
        np.ones(len(whole)),  # one prompt token at 1 / TTFT_S a second
        np.array([float(t["tokens"]) for t in whole]),
    )
    passed = simulate(groups, requests, Rules())
    outputs = requests.output_tokens
    prompt, output = Moments(1.0, 0.0), Moments(float(outputs.mean()), float(outputs.var()))
    rate = len(whole) / float(requests.arrivals_s[-1])
    line = fleet_line([(g.speeds, g.replicas) for g in groups], rate, prompt, output)
    seen_first = np.array([float(t["first_s"]) for t in whole])[streamed]
    seen_end = np.array([float(t["end_s"]) for t in whole])
    said_first = (passed.first_token_s - passed.arrived_s)[streamed]
    said_end = passed.ended_s - passed.arrived_s
    figures = {}
    for name, seen, said in (
        ("first token, mean", seen_first.mean(), said_first.mean()),
        ("first token, p50", np.quantile(seen_first, 0.5), np.quantile(said_first, 0.5)),
        ("first token, p95", np.quantile(seen_first, 0.95), np.quantile(said_first, 0.95)),
        ("end, mean", seen_end.mean(), said_end.mean()),
        ("end, p95", np.quantile(seen_end, 0.95), np.quantile(said_end, 0.95)),
    ):
        figures[name] = {"seen_s": float(seen), "foreseen_s": float(said)}
    return {
        "requests": len(told),
        "whole": len(whole),
        "utilisation": line.utilisation,
        "figures": figures,
        "mean wait by M/M/c, s": line.mean_wait_s,
        "mean wait by M/G/c, s": line.mean_wait_general_s,
    }


def show(found: dict[str, Any]) -> None:
    """One load as rows of a Markdown table."""
    busy = f"{found['utilisation']:.0%}"
    for name, row in found["figures"].items():
        seen, said = row["seen_s"], row["foreseen_s"]
        off = (said - seen) / seen if seen else 0.0
        print(f"| {busy} | {name} | {seen:.3f} s | {said:.3f} s | {off:+.0%} |")
    waits = (found["mean wait by M/M/c, s"], found["mean wait by M/G/c, s"])
    print(f"| {busy} | mean wait by formula | | M/M/c {waits[0]:.3f} s, M/G/c {waits[1]:.3f} s | |")


def stored(path: Path) -> list[dict[str, Any]]:
    """The loads that another benchmark has stored."""
    document = json.loads(path.read_text())
    if isinstance(document, list):
        return [{"told": document}]
    if "loads" in document:
        return list(document["loads"])
    return [{"told": document.get("told") or document["requests"]}]


def main() -> int:
    """Measure or read, foresee, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--from", dest="stored", type=Path)
    parser.add_argument("--status", type=Path)
    parser.add_argument("--client", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client is not None:
        asyncio.run(client(args))
        return 0
    if args.out is None or (args.stored is not None and args.status is None):
        parser.error("OUT.json is missing, or --status of the stored requests")
    if args.stored is not None:
        document: dict[str, Any] = {"loads": stored(args.stored)}
        document["status"] = json.loads(args.status.read_text())
    else:
        document = measure(args.seconds)
    status = from_json(FleetStatus, json.dumps(document["status"]), what="status")
    groups = groups_from(status)
    print("| busy | figure | seen | foreseen | off |\n|---|---|---|---|---|")
    for load in document["loads"]:
        load["foreseen"] = foreseen(groups, load["told"])
        show(load["foreseen"])
    args.out.write_text(json.dumps(document) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
