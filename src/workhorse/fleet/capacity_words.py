"""What limits a fleet and what helps, in words. Pure."""

from workhorse.fleet.capacity import Goals, Limit, Load
from workhorse.text import Text
from workhorse.units import three_digits

LIMITS: dict[Limit, Text] = {
    "nothing": Text("Nothing: it does what is wished.", "无瓶颈：满足全部目标。"),
    "slots": Text(
        "Slots: all of them are taken, and requests wait for one.", "槽位：全部占满，请求需要排队。"
    ),
    "line": Text(
        "The line: at busy moments it is full, and requests are refused.",
        "队列：高峰时排满，请求被拒绝。",
    ),
    "prefill": Text(
        "Prefill: prompts are read so slowly that the first token is late without any wait.",
        "预填充：读取提示词太慢，不排队首个词元也会迟到。",
    ),
    "decode": Text(
        "Decode: with all slots at work each stream writes too slowly.",
        "解码：槽位全部工作时每路生成太慢。",
    ),
    "prompts": Text(
        "Prompts of others: while they are read, the streams beside them stand still.",
        "他人的提示词：读取期间，同一副本上的其他生成会停顿。",
    ),
}
REMEDIES: dict[Limit, Text] = {
    "nothing": Text(
        "Keep some in reserve for the day on which a box fails.", "请为单台故障预留余量。"
    ),
    "slots": Text("More boxes, or shorter answers.", "增加机器，或缩短回答。"),
    "line": Text(
        "More boxes, or a longer line (queue.length in the settings).",
        "增加机器，或加长队列（配置项 queue.length）。",
    ),
    "prefill": Text(
        "Quicker cards, shorter prompts, or templates that are kept (--cached).",
        "换更快的显卡、缩短提示词，或使用保留的模板（--cached）。",
    ),
    "decode": Text(
        "Fewer slots a replica, a smaller quant, or quicker cards.",
        "减少每副本槽位、改用更小的量化，或换更快的显卡。",
    ),
    "prompts": Text(
        "More boxes share the prompts; or shorter prompts, or kept templates.",
        "增加机器分担提示词；或缩短提示词、保留模板。",
    ),
}


def load_words(load: Load) -> Text:
    """What is asked of the fleet, in one line."""
    prompt, output = load.prompt, load.output
    en = f"prompts of {prompt.mean_tokens:.0f} tokens (95 %: {prompt.p95_tokens:.0f})"
    zh = f"提示词 {prompt.mean_tokens:.0f} 词元（95%：{prompt.p95_tokens:.0f}）"
    if load.cached_share:
        en += f", {load.cached_share:.0%} of it cached"
        zh += f"，其中 {load.cached_share:.0%} 已缓存"
    en += f", answers of {output.mean_tokens:.0f} (95 %: {output.p95_tokens:.0f})"
    zh += f"，回答 {output.mean_tokens:.0f}（95%：{output.p95_tokens:.0f}）"
    if load.closed:
        return Text(
            f"{load.users} users who think {load.think_s:.0f} s between answer and question; {en}",
            f"{load.users} 位用户，每次回答后思考 {load.think_s:.0f} 秒；{zh}",
        )
    rate = rate_words(load.requests_per_s or 0.0)
    if load.users is None:
        return Text(f"{rate.en}; {en}", f"{rate.zh}；{zh}")
    return Text(f"{load.users} users, {rate.en}; {en}", f"{load.users} 位用户，{rate.zh}；{zh}")


def rate_words(requests_per_s: float) -> Text:
    """A rate in the unit in which it is easy to imagine."""
    if requests_per_s >= 0.1:
        shown = three_digits(requests_per_s)
        return Text(f"{shown} requests/s", f"每秒 {shown} 个请求")
    shown = three_digits(requests_per_s * 3600)
    return Text(f"{shown} requests/h", f"每小时 {shown} 个请求")


def goals_words(goals: Goals) -> Text:
    """What is wished for, in one line."""
    first, speed = three_digits(goals.first_token_s), three_digits(goals.stream_tokens_per_s)
    return Text(
        f"of 100 requests, 95 have their first token within {first} s and are written at "
        f"{speed} tok/s or more",
        f"95% 的请求在 {first} 秒内得到首个词元，且生成速度不低于 {speed} tok/s",
    )
