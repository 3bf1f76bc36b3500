"""One way to use the cards with the plans of its engines, and what it is worth. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from workhorse.plan.several_spread import Within
from workhorse.plan.several_users import at_users, users_speeds
from workhorse.plan.speed import card_reader
from workhorse.records import Gpu, Plan, Split, Way
from workhorse.text import Text

# Twice as fast as people read: 238 words a minute (Brysbaert 2019, 190 studies), 4 tokens in 3
# words. Below it a reader waits.
READABLE_TOKENS_PER_S = 10.0
# More engines, or cards that work together, have to be worth it: by this share.
WORTH = 1.1
# A further card for one engine that fewer hold: faster cards beside a slow and roomy one.
WORTH_A_CARD = 1.5
# Tensor split is called experimental by its authors (docs/multi-gpu.md of llama.cpp, 2026-10):
# taken unasked only over NVLink, and when it promises so much more.
WORTH_EXPERIMENTAL = 1.2


@dataclass(frozen=True, slots=True)
class Tried:
    """A way with the plans of its engines."""

    split: Split
    within: Within
    plans: tuple[Plan, ...]
    experimental: Text | None = None  # why it is not taken unasked

    @property
    def cards(self) -> int:
        """How many cards or, without any, engines it takes."""
        return sum(len(plan.gpu_indexes) for plan in self.plans) or len(self.plans)

    @property
    def slots(self) -> int:
        """Requests at a time of all engines."""
        return sum(plan.slots for plan in self.plans)

    def total(self, users: int) -> float:
        """Tokens a second of so many users together; 0 where no speed is known."""
        speed = at_users(self.plans, users)
        return 0.0 if speed is None else speed.total_tokens_per_s.value

    def serves(self, users: int) -> bool:
        """A slot for each user, and a readable speed where one is known."""
        speed = at_users(self.plans, users)
        readable = speed is None or speed.each_tokens_per_s.value >= READABLE_TOKENS_PER_S
        return self.slots >= users and readable

    @property
    def works(self) -> bool:
        """False when a plan says that it cannot run."""
        return not any(plan.verdict.blocked for plan in self.plans)


def speed_of(plan: Plan) -> float:
    """Decode speed of one stream; 0 where it is not known."""
    decode = plan.forecast.decode_tokens_per_s
    return 0.0 if decode is None else decode.value


def way_of(tried: Tried, because: Text | None) -> Way:
    """What the record keeps of a way."""
    held: dict[str, int] = {}
    for plan in tried.plans:
        for line in plan.budget:
            if line.device != "disk":
                held[line.device] = held.get(line.device, 0) + line.n_bytes
    fastest = max(tried.plans, key=speed_of)
    return Way(
        split=tried.split,
        within=tried.within,
        gpus=tuple(plan.gpu_indexes for plan in tried.plans),
        nodes=tuple(plan.memory_nodes for plan in tried.plans),
        context_tokens=min(plan.context_tokens for plan in tried.plans),
        slots=tried.slots,
        device_bytes=held,
        users=users_speeds(tried.plans),
        prefill_tokens_per_s=fastest.forecast.prefill_tokens_per_s,
        transfers=tuple(
            term for term in fastest.forecast.terms if term.device in ("links", "PCIe")
        ),
        because=because,
    )


def best_of(ways: Sequence[Tried], users: int, start: Tried) -> Tried:
    """The way with the best total; one with more engines or cards has to be worth it."""
    best = start if start in ways or not ways else ways[0]
    for way in ways:
        worth = WORTH_EXPERIMENTAL if way.within == "tensor" else WORTH
        if way.total(users) > best.total(users) * worth:
            best = way
    return best


def reads_ram(plan: Plan) -> bool:
    """True when a decoded token reads weights of main memory."""
    return any(
        group.device == "RAM" and group.group in ("layers", "experts", "output")
        for group in plan.placement
    ) or (bool(plan.gpu_indexes) and 0 < plan.gpu_layers < plan.layers)


def whole_on_cards(plan: Plan) -> bool:
    """True for a plan that can run and reads cards alone."""
    return bool(plan.gpu_indexes) and not reads_ram(plan) and not plan.verdict.blocked


def within_of(plan: Plan) -> Literal["one", "layer"]:
    """How a plan of the planner uses its own cards."""
    return "layer" if len(plan.gpu_indexes) > 1 else "one"


def same_room(plan: Plan, best: Plan) -> bool:
    """Whether a plan offers as much context and as many slots as another."""
    return plan.context_tokens >= best.context_tokens and plan.slots >= best.slots


def bandwidth_of(gpu: Gpu) -> float:
    """How fast a card reads its memory; 0 where it is not known."""
    return card_reader(gpu).bandwidth_bytes_per_s or 0.0


def worth_of(way: Tried) -> float:
    """The speed of one engine, each further card taken off it."""
    return way.total(1) / WORTH_A_CARD ** (way.cards - 1)
