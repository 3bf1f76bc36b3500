"""A service as the dashboard sees it, in every state: simulated readings of real plans."""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import builders
from workhorse.errors import AppError
from workhorse.machine.probe import probe
from workhorse.plan.planner import make_plan
from workhorse.plan.what_if import assumed_build
from workhorse.plan.wish import Wish
from workhorse.records import (
    Alarm,
    CardReading,
    EngineReading,
    Finding,
    Machine,
    Plan,
    Reading,
)
from workhorse.run.address import Address
from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.backend import Roster, Served, capacity_of
from workhorse.serve.dashboard.routes import Dashboard
from workhorse.serve.history import History
from workhorse.serve.points import Event
from workhorse.serve.state import KeyUsage, Known, Measured, UsageTold
from workhorse.serve.templates import Tally
from workhorse.text import Text, same
from workhorse.units import GIB

CAPTURES = Path(__file__).parents[1] / "captures"
MODEL = "Seven-7B-F16"
SEVEN_B = replace(
    builders.model(
        layers=28,
        embedding=3584,
        feed_forward=18944 * 3,
        heads=28,
        kv_heads=4,
        head_size=128,
        vocabulary=152064,
    ),
    path=f"/models/{MODEL}.gguf",
    name="Seven 7B",
)


def plan_for(capture: str) -> tuple[Machine, Plan]:
    """The real plan of a 7B on a captured machine."""
    machine = probe(CAPTURES / f"{capture}.json")
    return machine, make_plan(machine, SEVEN_B, assumed_build(machine) or builders.CUDA, Wish())


@dataclass(eq=False)
class Owner:
    """The owner of an engine at `url`; None: there is none now."""

    url: str | None
    state: str = "ready"
    restarts: int = 0

    async def address(self, wait_s: float) -> Address:
        if self.url is None:
            raise AppError(same("It fell over."), same("Wait."), speaker="engine")
        return Address(self.url)


@dataclass
class Scene:
    """What a service would say; change it and look again."""

    machine: Machine
    plan: Plan | None
    backend: Owner
    reading: Reading | None
    history: History | None
    alarms: tuple[Alarm, ...] = ()
    measured: Measured | None = None
    reason: Text | None = None
    usage: UsageTold | None = None
    templates: tuple[Tally, ...] = ()
    model_name: str = MODEL

    def known(self) -> list[Known]:
        capacity = None if self.plan is None else capacity_of(self.plan)
        served = Served(self.model_name, self.backend, capacity)
        return [Known(served, self.plan, self.machine, self.measured, self.reason)]

    def dashboard(self) -> Dashboard:
        return Dashboard(
            self.known,
            reading=lambda: self.reading,
            alarms=lambda: self.alarms,
            usage=lambda: self.usage,
            templates=lambda: self.templates,
            history=self.history,
        )


def healthy(folder: Path, url: str | None = None, *, minutes: int = 20) -> Scene:
    """A V100 that has served for a while, with a gap where the service was restarted."""
    machine, plan = plan_for("machine_b")
    history = History(folder / "service-1.sqlite")
    now, dice = time.time(), random.Random(7)
    last = None
    for second in range(-minutes * 60, 1, 5):
        if -540 < second < -420:
            continue
        last = reading_at(now + second, plan, dice)
        history.take(last)
    history.note(Event(now - 540, MODEL, "restarting", ENDED))
    history.note(Event(now - 421, MODEL, "ready", None))
    backend = Owner(url)
    backend.restarts = 1
    usual = usual_speed(plan)
    measured = Measured(now - 86_000, usual, usual - 0.4, usual + 0.3, 1890.0, 0.27)
    usage = UsageTold(
        now - 86_400,
        (
            KeyUsage("wiki-search", 4211, 9_120_411, 6_031_000, 512_030, 15_210.0),
            KeyUsage("ticket-drafts", 302, 410_220, 120_400, 88_412, 2_455.0),
            KeyUsage("<b>odd & named</b>", 3, 900, 0, 412, 11.2),
        ),
    )
    tally = Tally("house style", MODEL, "ready", 1800, requests=230, hits=221, saved_s=412.0)
    return Scene(machine, plan, backend, last, history, (), measured, None, usage, (tally,))


ENDED = Text(
    "The engine was killed by signal 9; the kernel's log has an out-of-memory kill.",
    "引擎被信号 9 终止；内核日志中有内存不足的记录。",
)


def usual_speed(plan: Plan) -> float:
    """A little more than was promised, tokens a second."""
    assert plan.forecast.decode_tokens_per_s is not None
    return plan.forecast.decode_tokens_per_s.value * 1.04


def reading_at(at: float, plan: Plan, dice: random.Random) -> Reading:
    wave = math.sin(at / 170) + dice.uniform(-0.2, 0.2)
    busy = max(0, min(plan.slots, round(1.6 + 1.5 * wave)))
    speed = usual_speed(plan) - 2 * busy + dice.uniform(-1, 1) if busy else None
    engine = EngineReading(
        MODEL,
        "ready",
        1,
        busy,
        max(0, round(3 * wave - 2)),
        plan.slots,
        speed,
        0.0 if speed is None else speed * busy,
        1850 + 60 * wave if busy else None,
        0.3 + max(0.0, wave) * 0.9 if busy else None,
        700,
        busy,
        resident_bytes=2 * GIB,
    )
    card = CardReading(
        0,
        "GPU-1",
        "Tesla V100-SXM2-32GB",
        used_bytes=int(19.2 * GIB + busy * 2**26),
        total_bytes=32 * GIB,
        busy_share=0.96 if busy else 0.0,
        power_w=160 + 60 * wave if busy else 38.0,
        power_limit_w=300.0,
        temperature_c=58 + 8 * wave,
        sm_clock_mhz=1380,
        throttled_by=(),
        link_generation=3,
        link_width=16,
    )
    available = int(110 * GIB + wave * GIB)
    return Reading(at, (engine,), (card,), 128 * GIB, available, 0, 0.4 + 0.3 * abs(wave))


HOT = Finding(
    "gpu.power-capped",
    "warning",
    Text(
        "GPU 0 is slowed by its power cap: 100 W of 250 W, 690 MHz of 1380.",
        "GPU 0 因功耗上限而降频：250 W 被限制为 100 W，频率 690 / 1380 MHz。",
    ),
    Text(
        "Decode runs at 27 of 52 tok/s.",
        "解码速度只有 27 tok/s，正常为 52 tok/s。",
    ),
    Text("Set the cap back to the card's default.", "把功耗上限恢复为显卡默认值。"),
    "nvidia-smi documentation, clocks event reasons",
    command="sudo nvidia-smi -i 0 -pl 250",
    evidence=("clocks_event_reasons.sw_power_cap: Active", "power.limit: 100.00 W"),
)
GARBAGE = Finding(
    "engine.garbage",
    "blocker",
    Text(
        'Three answers in a row are one token repeated: "GGGGGGGG".',
        "连续三个回答是同一词元的重复：“GGGGGGGG”。",
    ),
    Text("Clients get nonsense.", "客户端收到的是乱码。"),
    Text("Restart the engine with flash attention off.", "关闭 flash attention 后重新启动引擎。"),
    "workhorse",
)


def alarmed(folder: Path, url: str | None = None) -> Scene:
    """Two alarms in force and one that is over."""
    scene = healthy(folder, url)
    now = time.time()
    scene.alarms = (
        Alarm(HOT, now - 1260, None, "GPU 0"),
        Alarm(GARBAGE, now - 60, None, MODEL),
        Alarm(replace(HOT, code="gpu.hot"), now - 9000, now - 8000, "GPU 0"),
    )
    assert scene.reading is not None
    card = replace(
        scene.reading.cards[0], throttled_by=("sw_power_cap",), power_w=99.0, power_limit_w=100.0
    )
    scene.reading = replace(scene.reading, cards=(card,))
    return scene


def restarting(folder: Path) -> Scene:
    """The engine has died and comes back."""
    scene = healthy(folder)
    scene.backend.state, scene.reason = "restarting", ENDED
    assert scene.reading is not None
    engine = replace(
        scene.reading.engines[0],
        state="restarting",
        decode_tokens_per_s=None,
        ttft_s=None,
        generating=0,
    )
    scene.reading = replace(scene.reading, engines=(engine,))
    return scene


def fresh(folder: Path, state: str = "planning") -> Scene:
    """Just started: no plan, no reading, no history."""
    machine, plan = plan_for("machine_b")
    history = History(folder / "service-1.sqlite")
    return Scene(machine, None if state == "planning" else plan, Owner(None, state), None, history)


@asynccontextmanager
async def served(scene: Scene, *, port: int = 0, **options: Any) -> AsyncIterator[str]:
    """A real gateway with the scene's dashboard; its URL."""
    roster = Roster([known.served for known in scene.known()])
    app = build_app(roster, activity=Activity(), **options)
    app.add_routes(scene.dashboard().table())
    gateway = Gateway(app)
    await gateway.start(port=port)
    assert gateway.url is not None
    try:
        yield gateway.url
    finally:
        await asyncio.shield(gateway.stop())
