"""Headings and labels of a report. Pure."""

from workhorse.text import Text

CASE = Text("run", "测量")
RUNS = Text("What is compared", "对比对象")
FIGURES = Text("Figures", "主要数据")
ALL = Text("All measurements", "全部测量")
PROMISED = Text("Predicted against measured", "预测与实测")
CONCURRENCY = Text("Several streams at a time", "并发")
ROOFLINE = Text("Roofline", "屋顶线")
LENGTHS = Text("Prompts and contexts", "提示词与上下文长度")
ATTRIBUTION = Text("Where a token's time goes", "每个 token 的时间花在哪里")
CONDITIONS = Text("Conditions", "测量条件")
DOUBTS = Text("Doubts", "存疑之处")
UNREAD = Text("Not in this report", "未能纳入")
CHANGES = Text("What was changed, what it gave, how sure", "改了什么、效果如何、有多确定")

ROOFLINE_WORDS = Text(
    "A step reads the weights once, for one token or for one of each stream. So the memory's limit "
    "(slanted) grows with the tokens of a step, until the arithmetic's limit (level; the prefill "
    "speed that was measured) is reached. How far a point is below its line is what could still be "
    "won.",
    "每一步只读取一次权重，可供一个或多路并发各一个 token 使用。"
    "因此内存上限（斜线）随每步 token 数增长，"
    "直到碰到算力上限（水平线，取实测预填充速度）。"
    "点离线的距离就是尚可争取的空间。",
)
ATTRIBUTION_WORDS = Text(
    "From the memory's ceiling to what was measured: each part was measured by requests that "
    "differ in one thing, in turns; what no experiment separates is one joined part. The parts "
    "add up to the measured time; the thin lines are 95 % intervals.",
    "从内存上限到实测：各部分由只差一处的请求交替测得；无法区分的合并为一项。"
    "各部分之和等于实测时间；细线为 95 % 区间。",
)
NO_PLOTS = Text(
    "The plots are left out: matplotlib is not installed (`pip install 'workhorse[report]'`). The "
    "tables hold all figures.",
    "未绘图：没有安装 matplotlib（pip install 'workhorse[report]'）。所有数据见表格。",
)
EMPTY = Text("This run holds no figures: no request succeeded.", "该测量没有数据：没有请求成功。")

WHATS = {
    "decode": Text("decode, one stream", "解码，单路"),
    "prefill": Text("prefill", "预填充"),
    "streams": Text("decode of each of {} streams", "{} 路并发时每路解码"),
    "prompt": Text("prefill of {} tokens", "{} token 预填充"),
    "depth": Text("decode behind {} tokens", "上下文 {} token 时解码"),
}


def what(code: str, size: int) -> Text:
    """A promise's name with its size."""
    words = WHATS[code]
    return Text(words.en.format(size), words.zh.format(size))
