"""The main job on one screen: listen, probe, check, plan, fetch, launch, verify, serve, measure."""

import time

from workhorse.config import Places
from workhorse.errors import EXIT_GOOD, EXIT_NO
from workhorse.text import Text
from workhorse.up.decide import Ask
from workhorse.up.service import Service
from workhorse.up.teller import Teller


async def up(ask: Ask, where: Places, tell: Teller) -> int:
    """Turn this machine into a verified service, until cancelled; returns an exit code.

    The port is open from the start and stays open while the engines come and go.
    """
    began_s = time.monotonic()
    service = Service(ask, where, tell)
    try:
        await service.open()
        for engine in tuple(service.engines):
            tell.stage(Text("looking at this machine and planning", "检测本机并制定方案"))
            engines = await service.decide(engine)
            for one in engines:
                tell.decided(one.decided, one.on)
            if any(one.plan.verdict.blocked for one in engines):
                return EXIT_NO
            tell.stage(starting(len(engines)))
            ready = await service.start_first(engines)
            took_s, keyed = time.monotonic() - began_s, service.access.asks_for_key
            tell.ready(ready.plan, service.url, took_s, keyed=keyed)
        await service.run()  # until cancelled
    finally:
        await service.close()
    return EXIT_GOOD


def starting(engines: int) -> Text:
    """What begins now, for one engine or several of a model."""
    if engines == 1:
        return Text("starting the engine", "启动引擎")
    return Text(
        f"starting {engines} engines: the others as soon as the first is ready",
        f"启动 {engines} 个引擎：首个就绪后立即启动其余",
    )
