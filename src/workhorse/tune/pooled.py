"""What can be tried of an engine with one pool of KV (vLLM, LMDeploy), and the plan that it gives.

Such an engine decides most by itself: what is left to try is how many requests it computes
together, how much of a prompt goes into one step, and on a CPU its threads. Pure.
"""

from collections.abc import Sequence
from dataclasses import replace

from workhorse.plan.planner import TWO_BATCHES_S
from workhorse.plan.pooled import make_pooled_plan
from workhorse.records import Plan, Reason, Stored
from workhorse.text import Text
from workhorse.tune import cpu_choices
from workhorse.tune.changes import below_constraints, blocked_words, in_force, no_build, no_variable
from workhorse.tune.given import Given, Refusal
from workhorse.tune.offer import Around, NotHere, Offer, sorted_numbers
from workhorse.tune.settings import Settings, number, set_spin, set_threads, unreadable
from workhorse.tune.trial import Change

# The engines' own defaults lie between 512 and 8192 (vllm 0.32.0 arg_utils.py, lmdeploy 0.18.0
# messages.py; 2026-11).
BATCHES_TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192)
MADE_ANEW = ("engine", "slots", "batch")
MOVED = {"threads": set_threads, "spin": set_spin}


def reckon_pooled(given: Given, stored: Stored, changes: Sequence[Change]) -> Plan | Refusal:
    """The start plan with these changes, budget and forecast anew; or why that cannot be."""
    last = in_force(changes)
    unknown = next((name for name in last if name not in (*MADE_ANEW, *MOVED)), None)
    if unknown is not None:
        return no_variable(unknown)
    version = last.get("engine", given.plan.engine.version)
    builds = (given.plan.engine, *given.builds)
    build = next((b for b in builds if b.version == version), None)
    if build is None:
        return no_build(version)
    slots = number(last.get("slots", str(given.plan.slots)))
    batch = number(last.get("batch", str(given.plan.batch_tokens)))
    if not slots or not batch:
        return unreadable("slots", last["slots"]) if not slots else unreadable("batch", str(batch))
    made = make_pooled_plan(
        given.machine,
        given.model,
        stored,
        build,
        replace(given.wish, slots=slots),
        given.history,
        batch_tokens=batch,
    )
    if made.verdict.blocked:
        return Refusal(blocked_words(made))
    plan = replace(
        made,
        model_name=given.plan.model_name,
        states_dir=given.plan.states_dir,
        reasons=reasons_of(given.plan, made),
    )
    for name, move in MOVED.items():
        if name in last:
            moved = move(Settings(plan, given.model, given.machine), last[name])
            if isinstance(moved, Refusal):
                return moved
            plan = moved
    return below_constraints(given, plan) or smaller_kv(given, plan) or plan


def reasons_of(start: Plan, made: Plan) -> tuple[Reason, ...]:
    """The start's reasons with the room anew; of another engine its own."""
    if made.engine != start.engine:
        return made.reasons
    pool = {reason.setting: reason for reason in made.reasons if reason.setting == "pool"}
    return tuple(pool.get(reason.setting, reason) for reason in start.reasons)


def smaller_kv(given: Given, plan: Plan) -> Refusal | None:
    """The refusal of a plan that only fits with a KV type that loses more."""
    if plan.kv_type_k in (given.plan.kv_type_k, "auto"):
        return None
    return Refusal(
        Text(
            f"It only fits with a {plan.kv_type_k} KV cache, whose loss nobody has measured here.",
            f"只有使用 {plan.kv_type_k} KV 缓存才放得下，其质量损失未经测量。",
        ),
        memory=True,
    )


def environment(around: Around) -> Offer | NotHere:
    """Other environments of such engines that are installed here."""
    own = around.plan.engine
    builds = (around.given.plan.engine, *around.given.builds)
    values = tuple(dict.fromkeys((own.version, *(build.version for build in builds))))
    if len(values) < 2:
        return NotHere(
            "engine",
            Text(
                "No other environment with vLLM or LMDeploy is installed.",
                "未安装其他 vLLM 或 LMDeploy 环境。",
            ),
        )
    because = Text(
        "Their kernels differ: on old cards one was several times as fast as the other.",
        "两者的计算核不同：在旧显卡上曾相差数倍。",
    )
    return Offer("engine", own.version, values, False, because, 2.0, False)


def threads(around: Around) -> Offer | NotHere:
    """Threads of the arithmetic, on a CPU; nobody has measured yet what they do to such engines."""
    offer = cpu_choices.threads(around)
    return offer if isinstance(offer, NotHere) else replace(offer, told=False)


def batch(around: Around) -> Offer | NotHere:
    """Prompt tokens of one step, between what the engines take and what leaves others waiting."""
    plan, pool = around.plan, around.plan.pool
    if around.given.goal == "decode":
        return NotHere(
            "batch",
            Text("One stream is decoded token by token.", "单路解码逐词元进行，与批次无关。"),
        )
    if pool is None or not pool.chunked_prefill:
        return NotHere(
            "batch", Text("A prompt is read in one piece here.", "此处提示词一次性读入。")
        )
    room = plan.forecast.prefill_tokens_per_s.value * TWO_BATCHES_S / 2
    # vLLM does not start with fewer tokens a step than requests (config/scheduler.py of 0.32.0).
    values = {size for size in BATCHES_TOKENS if plan.slots <= size <= max(room, plan.batch_tokens)}
    because = Text(
        "A long step computes a prompt sooner, and every other stream waits for its end.",
        "步长越大提示词算得越快，但其他请求要等它结束。",
    )
    now = plan.batch_tokens
    return Offer("batch", str(now), sorted_numbers(values, now), True, because, 1.13, False)


def kv(around: Around) -> NotHere:
    """Not tried: what a smaller cache loses cannot be seen from outside."""
    title = around.plan.engine.engine
    return NotHere(
        "kv",
        Text(
            f"A smaller KV cache loses quality, and {title} is not asked for the probabilities by "
            "which that is measured.",
            f"更小的 KV 缓存会损失质量，而 {title} 未提供用于衡量的概率。",
        ),
    )


def prefix_cache(around: Around) -> NotHere:
    """Not tried: the rounds of a trial share nothing, so they would always speak against it."""
    on = around.plan.pool is not None and around.plan.pool.prefix_cache
    words = Text("It stays on", "保持开启") if on else Text("It stays off", "保持关闭")
    return NotHere(
        "prefix cache",
        Text(
            f"{words.en}: what it saves depends on what your prompts share, and those of a trial "
            "share nothing.",
            f"{words.zh}：收益取决于提示词的共同前缀，而试验的提示词互不相同。",
        ),
    )
