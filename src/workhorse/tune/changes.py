"""What changes amount to, and what no change may give up, whatever the engine. Pure."""

from collections.abc import Sequence

from workhorse.records import Plan
from workhorse.text import Text
from workhorse.tune.given import Given, Refusal
from workhorse.tune.trial import Change


def in_force(changes: Sequence[Change]) -> dict[str, str]:
    """The value of each variable after these changes.

    Other CPUs bring their own threads and memory nodes: what was found for the old ones is gone.
    """
    last: dict[str, str] = {}
    for change in (part for made in changes for part in made.parts):
        if change.variable == "cpus":
            last.pop("threads", None)
            last.pop("numa", None)
        last[change.variable] = change.value
    return last


def blocked_words(plan: Plan) -> Text:
    """What blocks a plan."""
    return next(f.seen for f in plan.verdict.findings if f.level == "blocker")


def below_constraints(given: Given, plan: Plan) -> Refusal | None:
    """The refusal of a plan that gives up what was asked for."""
    wanted = given.constraints
    if plan.context_tokens < wanted.context_tokens:
        return Refusal(
            Text(
                f"{plan.context_tokens} tokens of context, {wanted.context_tokens} are asked for.",
                f"上下文 {plan.context_tokens} 词元，要求不少于 {wanted.context_tokens}。",
            )
        )
    if plan.slots < wanted.slots:
        return Refusal(
            Text(
                f"{plan.slots} slots, {wanted.slots} are asked for.",
                f"{plan.slots} 个槽位，要求不少于 {wanted.slots}。",
            )
        )
    if not plan.flash_attention and plan.kv_type_v != "f16":
        return Refusal(
            Text(
                "A quantised KV cache needs flash attention.",
                "量化的 KV 缓存需要 flash attention。",
            )
        )
    return None


def no_variable(name: str) -> Refusal:
    """The refusal of a change of something that is no variable of this engine."""
    return Refusal(Text(f"There is no variable called {name!r}.", f"没有名为 {name!r} 的变量。"))


def no_build(version: str | None) -> Refusal:
    """The refusal of a build that is not there."""
    return Refusal(
        Text(f"No engine build {version} is at hand.", f"没有版本为 {version} 的引擎构建。")
    )
