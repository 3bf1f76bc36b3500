"""An hour of the real service under light load, watched by its guard: what it says, and why.

    python benchmarks/guard_quiet_hour.py --minutes 60 --readings quiet_hour.jsonl

On a healthy machine it must say nothing. The readings are written one a line; together with the
plan in the first line they can be judged again (tests/guard/test_quiet_hour.py).
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TextIO

import aiohttp

from workhorse.cli.up import Speaker
from workhorse.codec import to_line
from workhorse.config import places
from workhorse.guard.judge import News
from workhorse.records import Reading
from workhorse.up.decide import Ask
from workhorse.up.service import Service

SUBJECTS = ("a river", "an old server", "bread", "the sea", "a library", "winter", "a horse")
PAUSE_S = (2.0, 9.0)
ANSWER_TOKENS = (40, 120)


async def chat(http: aiohttp.ClientSession, url: str, chance: random.Random) -> None:
    """One request of a user, read to its end."""
    body = {
        "model": "any",
        "messages": [{"role": "user", "content": f"Tell me about {chance.choice(SUBJECTS)}."}],
        "max_tokens": chance.randint(*ANSWER_TOKENS),
        "stream": True,
    }
    async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
        async for _ in answer.content.iter_any():
            pass


async def light_load(url: str, chance: random.Random) -> None:
    """One user, now and then a second one."""
    async with aiohttp.ClientSession() as http:
        while True:
            users = 2 if chance.random() < 0.1 else 1
            await asyncio.gather(*(chat(http, url, chance) for _ in range(users)))
            await asyncio.sleep(chance.uniform(*PAUSE_S))


class Notes:
    """What the guard saw and said."""

    def __init__(self, out: TextIO) -> None:
        self.readings = 0
        self.news: list[News] = []
        self._out = out

    def reading(self, reading: Reading) -> None:
        """One more reading."""
        self.readings += 1
        self._out.write(to_line(reading) + "\n")

    def alarm(self, news: News) -> None:
        """An alarm began or is over."""
        self.news.append(news)
        print(f"{news.kind}: {news.alarm.finding.seen.en}", file=sys.stderr)


async def watch_quietly(minutes: float, out: TextIO, *, measure: bool) -> Notes:
    """Start the service, load it lightly, and listen to its guard."""
    notes = Notes(out)
    service = Service(Ask(port=0, measure=measure), places(), Speaker("en", as_json=False))
    try:
        await service.open()
        for engine in tuple(service.engines):
            for one in await service.decide(engine):
                await service.start(one)
                out.write(to_line(one.plan) + "\n")
        service.guarding.watch.on_reading(notes.reading)
        service.guarding.watch.on_alarm(notes.alarm)
        running = asyncio.create_task(service.run())
        if measure:
            await measured(service)
        load = asyncio.create_task(light_load(service.url, random.Random(1)))
        await asyncio.wait({load, running}, timeout=minutes * 60)
        load.cancel()
        running.cancel()
        await asyncio.gather(load, running, return_exceptions=True)
    finally:
        await service.close()
    return notes


async def measured(service: Service) -> None:
    """Wait until the service has measured itself: nobody asks meanwhile."""
    while "measuring" not in service._beside:  # noqa: ASYNC110 - it begins without an event
        await asyncio.sleep(0.05)
    await asyncio.wait({service._beside["measuring"]})


def main() -> None:
    """Run it and print what was said."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--readings", type=Path, default=Path("quiet_hour.jsonl"))
    parser.add_argument(
        "--no-measure",
        action="store_true",
        help="let the guard learn the speed from the load alone",
    )
    args = parser.parse_args()
    began_s, cpu_s = time.monotonic(), time.process_time()
    with args.readings.open("w", encoding="utf-8") as out:
        notes = asyncio.run(watch_quietly(args.minutes, out, measure=not args.no_measure))
    raised = Counter(n.alarm.finding.code for n in notes.news if n.kind == "raised")
    found = {
        "minutes": round((time.monotonic() - began_s) / 60, 1),
        "readings": notes.readings,
        "alarms": dict(raised),
        "told": [n.alarm.finding.seen.en for n in notes.news if n.kind == "raised"],
        "service_cpu_s": round(time.process_time() - cpu_s, 1),
    }
    print(json.dumps(found, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
