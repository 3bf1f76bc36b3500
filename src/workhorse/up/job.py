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
            decision = await engine.decide()
            tell.decided(decision)
            if decision.plan.verdict.blocked:
                return EXIT_NO
            tell.stage(Text("starting the engine", "启动引擎"))
            await service.start(engine)
            took_s, keyed = time.monotonic() - began_s, service.access.asks_for_key
            tell.ready(decision.plan, service.url, took_s, keyed=keyed)
        await service.run()  # until cancelled
    finally:
        await service.close()
    return EXIT_GOOD
