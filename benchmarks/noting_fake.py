"""The fake engine, which also writes down when each token really left it.

    python benchmarks/noting_fake.py NOTES.jsonl --port N --slots 16 --ttft-ms 200 --gap-ms 20

One line an answer: when its request came and when each of its tokens was sent, by the machine's
monotonic clock, which the bench reads too. What was told and what was done differ on a busy
machine; against this the bench has no excuse.
"""

import asyncio
import json
import sys
from pathlib import Path

from aiohttp import web

from workhorse.engines.fake.__main__ import behaviour_of, build_parser, exact_loop
from workhorse.engines.fake.ask import Ask
from workhorse.engines.fake.decode import Behaviour, Decoder, Emit, Words
from workhorse.engines.fake.server import Server
from workhorse.engines.fake.wire import Answer, End


class NotingDecoder(Decoder):
    """Notes the times of what it emits."""

    def __init__(self, behaviour: Behaviour, notes: Path) -> None:
        super().__init__(behaviour)
        self._notes = notes.open("a", encoding="utf-8")

    async def run(
        self, ask: Ask, answer: Answer, words: Words, arrived_s: float, emit: Emit
    ) -> End:
        """As the fake engine does, with a line in the notes at the end."""
        clock = asyncio.get_running_loop().time
        sent_s: list[float] = []

        async def noting(data: bytes) -> object:
            sent_s.append(clock())
            return await emit(data)

        end = await super().run(ask, answer, words, arrived_s, noting)
        line = {"stream": ask.stream, "arrived_s": arrived_s, "sent_s": sent_s}
        self._notes.write(json.dumps(line) + "\n")
        self._notes.flush()
        return end


async def serve(notes: Path, words: list[str]) -> None:
    """Serve until killed."""
    args = build_parser().parse_args(words)
    server = Server(behaviour_of(args), model=args.model)
    server.decoder = NotingDecoder(server.behaviour, notes)
    runner = web.AppRunner(
        server.app(), handler_cancellation=True, access_log=None, keepalive_timeout=5
    )
    await runner.setup()
    await web.TCPSite(runner, args.host, args.port, backlog=1024).start()
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=exact_loop) as loop:
        loop.run(serve(Path(sys.argv[1]), sys.argv[2:]))
