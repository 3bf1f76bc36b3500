"""One model over two hosts by llama.cpp's RPC, against the forecast and against one host alone.

Run it: `python benchmarks/fleet_spread.py --engine LLAMA_SERVER --model FILE`. The hosts are
namespaces of this machine (`fleet_rig.py`), each a half of the layers; the link between them can
be made slower (`--mbit`, Linux' token bucket, and `--delay-ms` by a relay, as not every kernel has
netem). LLAMA_SERVER has `ggml-rpc-server` beside it, as `workhorse engine build` makes both. The
parts are the product's own: the link's probe, the plan, the launch, the RPC server. Both engines
run at once and are asked in turn, so that a change of load strikes both.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet_rig import Host, Lab, refusal
from workhorse.engines.find import binary_build
from workhorse.engines.llamacpp import launch
from workhorse.fleet.link import Answering, LinkAnswerer, measure
from workhorse.fleet.rpc_server import RpcServer, build_at
from workhorse.fleet.spread import Helper, spread_over
from workhorse.machine.probe import probe
from workhorse.models.gguf import read_gguf
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import Estimate, Machine, Model, Plan
from workhorse.run.ask import ask_engine
from workhorse.run.process import EngineProcess, free_port

HERE = Path(__file__).resolve()
ROUNDS, TOKENS = 7, 48
PROMPT = "Name three colours and say of each where it is found."
RELAY = """
import asyncio, socket, sys
own, port, to, to_port, delay_s = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), 0.0
delay_s = float(sys.argv[5])
async def pipe(reader, writer):
    loop, queue = asyncio.get_running_loop(), asyncio.Queue()
    async def out():
        while True:
            due, chunk = await queue.get()
            if not chunk:
                return writer.close()
            await asyncio.sleep(max(0.0, due - loop.time()))
            writer.write(chunk)
            await writer.drain()
    sender = asyncio.create_task(out())
    while chunk := await reader.read(1 << 20):
        await queue.put((loop.time() + delay_s, chunk))
    await queue.put((0, b""))
    await sender
async def joined(reader, writer):
    there, back = await asyncio.open_connection(to, to_port)
    for one in (writer, back):
        one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await asyncio.gather(pipe(reader, back), pipe(there, writer), return_exceptions=True)
async def main():
    server = await asyncio.start_server(joined, own, port)
    print("ready", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def main() -> None:
    """Both hosts, one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", nargs="?", choices=("lend", "serve"))
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--mbit", type=int, help="rate of the link; left out: as it is")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--address", help="of this host (roles)")
    parser.add_argument("--told", help="what the other host said (roles)")
    args = parser.parse_args()
    if args.role == "lend":
        lend(args)
    elif args.role == "serve":
        print(json.dumps(asyncio.run(serve(args))))
    else:
        if (why := refusal()) is not None:
            raise SystemExit(why)
        print(json.dumps(run(args), indent=2))


def run(args: argparse.Namespace) -> Any:
    """Make the hosts and the link, and run a role on each."""
    engine, model = args.engine.resolve(), args.model.resolve()
    with Lab(kept=[engine.parent, model.parent]) as lab:
        one, two = lab.host("one"), lab.host("two")
        words = [sys.executable, str(HERE), "--engine", str(engine), "--model", str(model)]
        words += ["--threads", str(args.threads)]
        if args.mbit is not None:
            bucket = ["tbf", "rate", f"{args.mbit}mbit", "burst", "32kb", "latency", "400ms"]
            for host in (one, two):
                put = ["tc", "qdisc", "add", "dev", "eth0", "root", *bucket]
                host.run(put).check_returncode()
        told = first_line(two, [*words, "--address", two.address, "lend"])
        if args.delay_ms:
            told = relayed(one, told, args.delay_ms / 1000)
        done = one.run([*words, "--address", one.address, "--told", told, "serve"])
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
    return {"mbit": args.mbit, "delay_ms": args.delay_ms, **json.loads(done.stdout)}


def first_line(host: Host, command: list[str]) -> str:
    """Start it and give what it says first; it ends with the host."""
    process = subprocess.Popen(
        host.command(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process.stdout.readline().strip()


def relayed(host: Host, told: str, delay_s: float) -> str:
    """The same places behind relays on this host, which hand each block on later."""
    places = json.loads(told)
    for name in ("rpc", "probe"):
        to, to_port = places[name]
        port = {"rpc": 7001, "probe": 7002}[name]
        words = [sys.executable, "-c", RELAY, "127.0.0.1", str(port), to, str(to_port)]
        first_line(host, [*words, str(delay_s)])
        places[name] = ["127.0.0.1", port]
    return json.dumps(places)


def lend(args: argparse.Namespace) -> None:
    """The helper: its RPC server and a probe's answerer, until the host ends."""
    build = build_at(args.engine)
    folder = Path("/tmp/rpc")
    lent = RpcServer(build, args.address, threads=args.threads, cards=(), folder=folder)
    host, _, port = lent.start().rpartition(":")
    probe_place = LinkAnswerer(args.address).place
    told = {"rpc": [host, int(port)], "probe": [probe_place.host, probe_place.port]}
    print(json.dumps({**told, "word": probe_place.word}), flush=True)
    sys.stdin.read()


async def serve(args: argparse.Namespace) -> Any:
    """The main host: measure the link, plan, start both engines, ask them in turn."""
    told = json.loads(args.told)
    probe_host, probe_port = told["probe"]
    link = await asyncio.to_thread(measure, Answering(probe_host, probe_port, told["word"]))
    machine, model = probe(), read_gguf(args.model)
    build, wish = binary_build(args.engine), Wish(context_tokens=1024, slots=1, headroom=0.0)
    alone = as_told(make_plan(machine, model, build, wish), args.threads)
    half = small(machine, model)
    spread = spread_over(model, half, build, [Helper("two", "two", half, link)], wish)
    rpc = f"{told['rpc'][0]}:{told['rpc'][1]}"
    split = replace(as_told(spread.plan, args.threads), rpc=(rpc,))
    engines = [
        EngineProcess(launch(plan, free_port("127.0.0.1")), Path(f"/tmp/{name}.log"))
        for name, plan in (("alone", alone), ("split", split))
    ]
    try:
        for one in engines:
            await one.start()
        for one in engines:
            await one.wait_ready(600)
        speeds: list[list[float]] = [[], []]
        for number in range(ROUNDS + 1):
            for engine, found in zip(engines, speeds, strict=True):
                answer = await ask_engine(engine, "/completion", body())
                if number:  # the first is for warming up
                    found.append(answer["timings"]["predicted_per_second"])
    finally:
        for one in engines:
            await one.stop()
    return {
        "link": {"mb_per_s": round(link.bytes_per_s / 1e6, 2),
                 "round_trip_ms": round(1000 * link.round_trip_s, 3)},
        "layers": [model.layers, split.gpu_layers],
        "threads": args.threads,
        "alone": figures(speeds[0], alone.forecast.decode_tokens_per_s),
        "split": figures(speeds[1], spread.forecast.decode_tokens_per_s),
        "link_ms_forecast": round(1000 * spread.link_s, 3),
        "more_ms_a_token": round(
            1000 * statistics.median(1 / b - 1 / a for a, b in zip(*speeds, strict=True)), 3
        ),
    }  # fmt: skip


def body() -> dict[str, Any]:
    """One question, the same each time and read anew each time."""
    fixed = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
    return {"prompt": PROMPT, "n_predict": TOKENS, **fixed}


def as_told(plan: Plan, threads: int) -> Plan:
    """The plan with so many threads: both hosts have the same cores."""
    return replace(plan, threads=threads)


def small(machine: Machine, model: Model) -> Machine:
    """The machine with room for about half of the model and what comes with it."""
    weights = sum(tensor.n_bytes for tensor in model.tensors)
    room = int(0.55 * weights) + 220 * 2**20
    return replace(machine, memory=replace(machine.memory, available_bytes=room))


def figures(speeds: list[float], forecast: Estimate | None) -> dict[str, Any]:
    """What was measured, and what was promised."""
    value = None if forecast is None else [forecast.value, forecast.low, forecast.high]
    return {
        "tokens_per_s": round(statistics.median(speeds), 2),
        "samples": [round(one, 2) for one in speeds],
        "forecast": None if value is None else [round(one, 2) for one in value],
    }


if __name__ == "__main__":
    main()
