"""What the terms of a token's time are called, and how each was found. Pure."""

from collections.abc import Sequence

from workhorse.text import Text

MEMORY = Text("memory at its bandwidth", "内存（按带宽）")
EXPECTED = Text("expected by the forecast, not measured", "来自速度预测，未经测量")
OWN_WORK = Text(
    "each token's own: arithmetic, sampling, detokenising",
    "每个 token 自身：计算、采样、解码为文本",
)
SHARED_WORK = Text(
    "each step's: layer overheads, reading below the bandwidth", "每一步：各层开销、读取未达带宽"
)
SECOND_STREAM = Text(
    "what a second stream in the same step adds is a token's own at most",
    "同一步中第二路并发增加的时间，即单个 token 自身用时的上限",
)

CLOCKS = Text("clocks below their most", "频率未达最高")


def clock(device: Text, mean_mhz: float, most_mhz: float) -> Text:
    """Which clock, and how far below."""
    return Text(
        f"{device.en} ran at {mean_mhz:.0f} of {most_mhz:.0f} MHz",
        f"{device.zh}运行于 {mean_mhz:.0f} MHz，最高 {most_mhz:.0f} MHz",
    )


_SIMPLE = {
    "pauses": (
        Text("waiting and pauses", "等待与停顿"),
        Text(
            "gaps between tokens of more than four usual ones, beyond the usual one",
            "超过常规间隔四倍的 token 间隔中，多出常规的部分",
        ),
    ),
    "gateway": (
        Text("gateway", "网关"),
        Text(
            "through the gateway against the engine's own port, in turns",
            "经网关与直连引擎端口交替测量之差",
        ),
    ),
    "sampling": (
        Text("sampler chain", "采样链"),
        Text(
            "the default chain against one that takes the likeliest token, in turns",
            "默认采样链与只取最可能 token 的采样交替测量之差",
        ),
    ),
}


def experiment(
    code: str,
    *,
    gateway: bool,
    kv_known: bool,
    depth_tokens: float,
    shallow_tokens: float | None,
) -> tuple[Text, Text]:
    """A measured term's name and how it was found.

    `gateway`: the client's clock also holds the gateway, which was not measured apart.
    """
    if code == "delivery":
        how = Text(
            "the client's clock against the engine's own, of the same answers",
            "同一批回答中客户端时钟与引擎自身时钟之差",
        )
        if gateway:
            return Text("gateway, network and delivery, joined", "网关、网络与发送（合并）"), how
        return Text("network and delivery", "网络与发送"), how
    if code == "attention":
        how = Text(
            f"a token behind {depth_tokens:.0f} tokens against one behind "
            f"{shallow_tokens or 0:.0f}, on a line to none",
            f"上下文 {depth_tokens:.0f} 与 {shallow_tokens or 0:.0f} token 时之差，"
            "线性外推到无上下文",
        )
        if kv_known:
            return Text("attention, beyond reading the KV", "注意力（读取 KV 之外）"), how
        return (
            Text("attention, KV included", "注意力（含读取 KV）"),
            Text(
                f"{how.en}; the memory's term holds these KV bytes too, so the rest is that much "
                "larger",
                f"{how.zh}；内存一项也包含这些 KV 字节，因此其余部分实际更大",
            ),
        )
    return _SIMPLE[code]


def rest(*, ceiling: bool, devices: Sequence[str], separated: Sequence[str]) -> tuple[Text, Text]:
    """The joined rest by all that it may hold."""
    parts: list[Text] = []
    if not ceiling:
        parts.append(Text("reading memory", "读取内存"))
    parts.append(Text("layer overheads", "各层开销"))
    parts.append(Text("arithmetic", "计算"))
    if "attention" not in separated:
        parts.append(Text("attention", "注意力"))
    if not devices or "RAM" in devices:
        parts.append(Text("layers on the CPU", "CPU 上的层"))
    if not devices or len(devices) > 1:
        parts.append(Text("PCIe", "PCIe"))
    known = "sampling" in separated
    parts.append(
        Text("sampling beside its chain, detokenising", "采样链之外的采样、解码为文本")
        if known
        else Text("sampling and detokenising", "采样与解码为文本")
    )
    parts.append(Text("clocks and other load", "频率与其他负载"))
    if "delivery" not in separated:
        parts.append(Text("gateway and network", "网关与网络"))
    return (
        Text("rest of the step, joined", "其余（合并）"),
        Text(
            ", ".join(part.en for part in parts) + ": what is left of the measured time; no "
            "experiment from outside separates these",
            "、".join(part.zh for part in parts) + "：实测时间减去以上各项；从外部无法再细分",
        ),
    )
