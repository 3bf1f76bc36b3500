"""The client of the fleet's benchmarks, as a program: it runs on a host of its own.

    python fleet_load.py rate URL --rate 10 --seconds 120      so many requests a second
    python fleet_load.py streams URL --streams 16 --rounds 5   so many streams at a time, in rounds
    python fleet_load.py closed URL --streams 12 --seconds 30  each client asks again when answered

Prints one JSON document. WORKHORSE_KEY holds the key. `rate` says of each request how it ended:

    whole     every token, and the end that the protocol asks for
    refused   an error with its words in the form of OpenAI's API, before any token
    told      tokens, then an error event with its words
    cut       tokens, or a head, then the connection was gone
    silent    nothing for --patience-s, or a connection that ended without a word
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from stream_load import Load, run

SHARED = "You are a careful clerk of a small office and answer in few words. " * 4


@dataclass(slots=True)
class Told:
    """How one request ended; seconds since the load began, and since it was sent."""

    sent_s: float
    stream: bool
    outcome: str = "silent"
    words: str = ""  # of the error
    first_s: float | None = None
    end_s: float = 0.0
    tokens: int = 0


def body_of(number: int, model: str, tokens: int) -> dict[str, Any]:
    """A request; every seventh shares its beginning, every second is streamed."""
    text = f"{SHARED if number % 7 == 0 else ''}Letter {number}: what does it ask for?"
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": number % 2 == 0,
    }


async def one(
    http: aiohttp.ClientSession, body: dict[str, Any], began_s: float, patience_s: float
) -> Told:
    """Send it and see how it ends."""
    sent_s = time.monotonic()
    told = Told(round(sent_s - began_s, 3), body["stream"])
    try:
        async with (
            asyncio.timeout(patience_s),
            http.post("/v1/chat/completions", json=body) as said,
        ):
            await (read_stream if said.status == 200 and told.stream else read_whole)(
                said, told, sent_s
            )
    except TimeoutError:
        told.words = told.words or f"nothing more for {patience_s:.0f} s"
        told.outcome = "silent"
    except (aiohttp.ClientError, OSError) as error:
        told.words = f"{type(error).__name__}: {error}"[:160]
        told.outcome = "cut" if told.first_s is not None else "silent"
    told.end_s = round(time.monotonic() - sent_s, 3)
    return told


async def read_whole(said: aiohttp.ClientResponse, told: Told, sent_s: float) -> None:
    """An answer in one piece, or an error."""
    data = await said.read()
    told.first_s = round(time.monotonic() - sent_s, 3)
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    if said.status == 200 and isinstance(document, dict) and document.get("choices"):
        told.outcome, told.tokens = "whole", document["usage"]["completion_tokens"]
        return
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict) and error.get("message"):
        told.outcome = "refused"
        told.words = f"{said.status} {error.get('code') or error.get('type')}: {error['message']}"
    else:
        told.outcome, told.words = "silent", f"{said.status} without words: {data[:80]!r}"


async def read_stream(said: aiohttp.ClientResponse, told: Told, sent_s: float) -> None:
    """Events to their end."""
    ended, finished = False, False
    async for line in said.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            ended = True
            continue
        event = json.loads(data)
        if error := event.get("error"):
            told.outcome = "told" if told.tokens else "refused"
            told.words = f"{error.get('code') or error.get('type')}: {error.get('message')}"
            return
        for choice in event.get("choices", ()):
            finished = finished or choice.get("finish_reason") is not None
            if choice.get("delta", {}).get("content"):
                told.tokens += 1
                if told.first_s is None:
                    told.first_s = round(time.monotonic() - sent_s, 3)
    told.outcome = "whole" if ended and finished else "cut"


async def at_rate(args: argparse.Namespace, http: aiohttp.ClientSession) -> list[Told]:
    """A request each 1/rate seconds, however the others fare."""
    began_s = time.monotonic()
    tasks = []
    for number in range(round(args.rate * args.seconds)):
        await asyncio.sleep(max(0.0, began_s + number / args.rate - time.monotonic()))
        body = body_of(number, args.model, args.tokens)
        tasks.append(asyncio.create_task(one(http, body, began_s, args.patience_s)))
    return list(await asyncio.gather(*tasks))


async def closed(args: argparse.Namespace, http: aiohttp.ClientSession) -> list[Told]:
    """So many clients; each asks again once it has its answer."""
    began_s, numbers = time.monotonic(), iter(range(10**9))

    async def client() -> list[Told]:
        seen = []
        while time.monotonic() - began_s < args.seconds:
            body = body_of(next(numbers), args.model, args.tokens) | {"stream": True}
            seen.append(await one(http, body, began_s, args.patience_s))
        return seen

    each = await asyncio.gather(*(client() for _ in range(args.streams)))
    return [told for client_told in each for told in client_told]


async def main(args: argparse.Namespace) -> None:
    """Do what is asked and print what was seen."""
    key = os.environ.get("WORKHORSE_KEY")
    if args.what == "streams":
        load = Load(args.streams, args.tokens)
        rounds = [asdict(await run(args.url, args.model, load, key)) for _ in range(args.rounds)]
        print(json.dumps(rounds))
        return
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(
        args.url, headers=headers, timeout=timeout, connector=connector
    ) as http:
        told = await (at_rate if args.what == "rate" else closed)(args, http)
    print(json.dumps([asdict(each) for each in told]))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("rate", "streams", "closed"))
    parser.add_argument("url")
    parser.add_argument("--model", default="fleet")
    parser.add_argument("--rate", type=float, default=10.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--patience-s", type=float, default=180.0)
    return parser.parse_args(words)


if __name__ == "__main__":
    asyncio.run(main(parse()))
