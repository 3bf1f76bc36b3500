"""What is said of a model over several machines: why, whether it is worth it, why not. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workhorse.errors import EXIT_NO, AppError
from workhorse.plan.placement import ram_room
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild, Estimate, Machine, Model, Reason
from workhorse.text import Text
from workhorse.units import show_bytes, show_duration, show_rate


def spread_reason(held_bytes: Mapping[str, int], link_s: float, load_s: float) -> Reason:
    """Why several machines, and what the way between them costs."""
    held = ", ".join(f"{name}: {show_bytes(n_bytes)}" for name, n_bytes in held_bytes.items())
    link, load = show_duration(link_s), show_duration(load_s)
    return Reason(
        "machines",
        held,
        Text(
            "No machine alone holds it. They work one after the other; the way between them takes "
            f"{link} of each token, and the weights {load} at the first start.",
            f"单台机器放不下。各机器依次计算；每个词元的网络往返耗时 {link}，"
            f"首次启动传输权重约需 {load}。",
        ),
    )


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another quant of the model, on one machine alone."""

    name: str  # of its file or quant
    node: str
    tokens_per_s: float
    bits_a_weight: float


def advice(own: Estimate | None, others: Sequence[Alternative]) -> Text:
    """Whether it is worth it, against the fastest smaller quant on one machine."""
    best = max(others, key=lambda one: one.tokens_per_s, default=None)
    if own is None:
        return Text(
            "How fast it will be is not known: run `workhorse probe --measure` on each node.",
            "无法预估速度：请在各节点运行 `workhorse probe --measure`。",
        )
    if best is None:
        return Text(
            f"About {show_rate(own.value)}; no smaller file was offered that fits one machine.",
            f"约 {show_rate(own.value)}；没有提供可放进单台机器的更小文件。",
        )
    ratio = best.tokens_per_s / own.value
    both = f"{show_rate(own.value)} / {best.name}: {show_rate(best.tokens_per_s)}"
    if ratio > 1:
        return Text(
            f"{best.name} on {best.node} alone writes {ratio:.1f} times as fast "
            f"({show_rate(best.tokens_per_s)} against {show_rate(own.value)}): spread the larger "
            "one only where its answers are worth the wait.",
            f"{best.name} 单独在 {best.node} 上的速度是其 {ratio:.1f} 倍（{both}）："
            "仅当较大模型的质量值得等待时才跨机器运行。",
        )
    return Text(
        f"No slower than {best.name} on {best.node} alone ({show_rate(own.value)} against "
        f"{show_rate(best.tokens_per_s)}).",
        f"不慢于单独在 {best.node} 上运行 {best.name}（{both}）。",
    )


def no_rpc(build: EngineBuild) -> AppError:
    """The error for an engine that knows no other machines, as the packaged one."""
    return AppError(
        Text(
            f"The engine {build.version} cannot share a model with other machines.",
            f"引擎 {build.version} 不支持跨机器运行模型。",
        ),
        Text(
            "Build one on the head with `workhorse engine build`, and install it on every node: "
            "workhorse engine install FILE",
            "请在主节点用 `workhorse engine build` 构建，并在每个节点安装："
            "workhorse engine install 文件",
        ),
        exit_code=EXIT_NO,
    )


def does_not_fit(model: Model, machines: Sequence[Machine], wish: Wish) -> AppError:
    """The error for a model that is too large for all of them together."""
    rooms = [ram_room(one, wish.headroom) or 0 for one in machines]
    needed = sum(tensor.n_bytes for tensor in model.tensors)
    return AppError(
        Text(
            f"{len(rooms)} machines together have room for {show_bytes(sum(rooms))} in main "
            f"memory; the weights alone are {show_bytes(needed)}.",
            f"{len(rooms)} 台机器的内存共可容纳 {show_bytes(sum(rooms))}；"
            f"仅权重就有 {show_bytes(needed)}。",
        ),
        Text(
            "Offer a smaller quant, a shorter --context or fewer --slots, or add a node.",
            "请提供更小的量化、缩短 --context、减少 --slots，或增加节点。",
        ),
        exit_code=EXIT_NO,
    )
