"""`python -m workhorse.engines.fake`: the fake engine's command line."""

import argparse
import asyncio
import os
import selectors
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from workhorse.engines.fake.decode import Behaviour
from workhorse.engines.fake.server import Server
from workhorse.engines.fake.surface import OUT_OF_MEMORY, Surface, read_surface, told_settings

# What llama-server 0.5.0 says about a model file that is not there (tried, 2026-11).
LAST_WORDS = (
    "0.00.005.329 I srv    load_model: loading model '{model}'",
    "0.00.005.380 E gguf_init_from_file: failed to open GGUF file '{model}' "
    "(No such file or directory)",
    "0.00.005.497 E llama_model_load: error loading model: llama_model_loader: "
    "failed to load model from {model}",
    "0.00.005.513 E srv    load_model: failed to load model, '{model}'",
    "0.00.005.810 E srv  llama_server: exiting due to model loading error",
)
PORT_TAKEN = (
    "0.00.004.193 E srv         start: couldn't bind HTTP server socket, "
    "hostname: {host}, port: {port}",
    "0.00.004.294 E srv  llama_server: exiting due to HTTP server error",
)


def build_parser() -> argparse.ArgumentParser:
    """The options; times in milliseconds, as people tell them."""
    parser = argparse.ArgumentParser(
        prog="python -m workhorse.engines.fake", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, required=True)
    add("--api-key", default=os.environ.get("LLAMA_API_KEY"), help="asked for but on /health")
    add("--model", "-m", default="fake", help="the name it goes by")
    add("--slots", "-np", type=int, default=4)
    add("--context", type=int, default=4096, help="tokens of one slot")
    add("--ttft-ms", type=float, default=0, help="from a free slot to the first token")
    add("--gap-ms", type=float, default=0, help="between two tokens of one answer")
    add("--prefill-ms-per-token", type=float, default=0, help="added to the time to first token")
    add("--load-s", type=float, default=0, help="answers 503 so long")
    add("--batch-slowdown", type=float, default=0, help="share added to the gap per busy slot")
    add("--error-rate", type=float, default=0, help="share of requests that get a 500")
    add("--hang-rate", type=float, default=0, help="share of requests that get no answer")
    add("--garbage-rate", type=float, default=0, help="share that get one token over and over")
    add("--seed", type=int, default=0)
    add("--answer-tokens", type=int, help="length of an answer that ends by itself")
    add("--embeddings", action="store_true")
    add("--garbage", action="store_true", help="answers one token over and over")
    add("--deaf", action="store_true", help="hears of a client that left when llama-server would")
    add("--hang", action="store_true", help="/health never answers")
    add("--die-at-start", action="store_true", help="fails as on a missing model file")
    add("--die-after-tokens", type=int, help="killed after so many tokens of all answers")
    add("--die-of", metavar="WORDS", help="killed by a prompt that holds these words")
    add("--fail-after-tokens", type=int, help="an answer ends in an error after so many tokens")
    add(
        "--ignore-sigterm",
        type=int,
        nargs="?",
        const=sys.maxsize,
        default=0,
        metavar="TIMES",
        help="how often it ignores the signal; always when no number is given",
    )
    add("--log-lines", type=Path, metavar="FILE", help="prints the file's lines to stderr at start")
    add("--surface", type=Path, metavar="FILE", help="speeds and faults by setting, surface.py")
    add("--ignore-unknown", action="store_true", help="accepts settings that it does not know")
    return parser


def behaviour_of(args: argparse.Namespace) -> Behaviour:
    """The told behaviour, times in seconds."""
    return Behaviour(
        slots=args.slots,
        context_tokens=args.context,
        ttft_s=args.ttft_ms / 1000,
        gap_s=args.gap_ms / 1000,
        prefill_s_per_token=args.prefill_ms_per_token / 1000,
        load_s=args.load_s,
        batch_slowdown=args.batch_slowdown,
        error_rate=args.error_rate,
        hang_rate=args.hang_rate,
        garbage_rate=args.garbage_rate,
        seed=args.seed,
        answer_tokens=args.answer_tokens,
        embeddings=args.embeddings,
        die_after_tokens=args.die_after_tokens,
        die_of=args.die_of,
        fail_after_tokens=args.fail_after_tokens,
        hang=args.hang,
        garbage=args.garbage,
        deaf=args.deaf,
    )


async def serve(args: argparse.Namespace, behaviour: Behaviour) -> int:
    """Serve until a SIGTERM or SIGINT that is not ignored; the exit code."""
    stopped = asyncio.Event()
    heard = 0

    def on_signal() -> None:
        nonlocal heard
        heard += 1
        if heard > args.ignore_sigterm:
            stopped.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    app = Server(behaviour, model=args.model, key=args.api_key).app()
    runner = web.AppRunner(
        app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1, keepalive_timeout=5
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, args.host, args.port, backlog=1024).start()
    except OSError:
        _say(PORT_TAKEN, args)
        return 1
    else:
        await stopped.wait()
        return 0
    finally:
        await runner.cleanup()


def _say(lines: Sequence[str], args: argparse.Namespace) -> None:
    for line in lines:
        sys.stderr.write(line.format(host=args.host, port=args.port, model=args.model) + "\n")


def exact_loop() -> asyncio.AbstractEventLoop:
    """An event loop that wakes within microseconds; epoll's waits are whole milliseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the fake engine; 1 when it cannot start or was told to die."""
    parser = build_parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown and not args.ignore_unknown:
        parser.error(f"unknown: {' '.join(unknown)}")
    if args.log_lines:
        sys.stderr.write(args.log_lines.read_text(encoding="utf-8", errors="replace"))
    surface = read_surface(args.surface.read_text()) if args.surface else Surface()
    told = told_settings(sys.argv[1:] if argv is None else argv, os.environ)
    faults = surface.faults(told)
    if args.die_at_start or "die" in faults:
        _say(LAST_WORDS, args)
        return 1
    if "out of memory" in faults:
        _say(OUT_OF_MEMORY, args)
        return 1
    with asyncio.Runner(loop_factory=exact_loop) as runner:
        return runner.run(serve(args, surface.behaviour(behaviour_of(args), told)))


if __name__ == "__main__":
    sys.exit(main())
