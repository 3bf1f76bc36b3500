"""The plots of a report as SVG, drawn by matplotlib.

Text stays text in the SVG: the page's reader chooses the font, so Chinese shows wherever the
reader has a Chinese font. matplotlib itself needs one to know how wide the words are; without
one the labels are English. `draw` is None where matplotlib is not installed.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

from workhorse.bench.report.document import (
    Curves,
    Plot,
    Promises,
    Roofline,
    Series,
    Waterfall,
)
from workhorse.text import Language, Text
from workhorse.units import three_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# One colour a case, told apart in print and by most colour-blind readers (Okabe and Ito, 2008,
# darkened); the marker repeats it.
COLOURS = ("#0b6e74", "#c4561a", "#5b4a9e", "#1d5fb8", "#a3306b", "#4c7a1f", "#8a6d00", "#4a5560",
           "#0f9aa8", "#d98b3f", "#8c7fd6", "#6fa3e8")  # fmt: skip
MARKERS = "osD^vPX*<>hp"
TERM_COLOURS = {
    "memory": "#0b6e74",
    "attention": "#5b4a9e",
    "sampling": "#1d5fb8",
    "rest": "#c4561a",
    "delivery": "#8a6d00",
    "gateway": "#a3306b",
    "pauses": "#7a8691",
}
INK, DIM, LINE, SOFT = "#182026", "#55616b", "#d8dee2", "#e9eef0"
WIDTH_IN = 8.0  # a little more than A4 holds, so that its words come out as large as the text
# Fonts with simplified Chinese, as systems name them (Linux, macOS, Windows; 2026-11).
CHINESE = ("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei",
           "WenQuanYi Zen Hei", "PingFang SC", "Heiti SC", "Microsoft YaHei", "SimHei",
           "Noto Sans CJK JP", "Noto Serif CJK SC", "Noto Serif CJK JP")  # fmt: skip
SIZED = re.compile(r'<svg [^>]*?width="[^"]*" height="[^"]*"', re.DOTALL)


def can_draw() -> bool:
    """Whether matplotlib is there."""
    try:
        import matplotlib  # noqa: F401 only whether it is there
    except ImportError:
        return False
    return True


def draw(plot: Plot, language: Language) -> str:
    """The plot as an `<svg>` element that scales with its page."""
    import matplotlib
    from matplotlib.figure import Figure

    font = chinese_font() if language == "zh" else None
    drawn: Language = "zh" if font else "en"
    with matplotlib.rc_context(style(font)):
        figure = Figure(figsize=(WIDTH_IN, height(plot)), layout="constrained")
        fill(figure, plot, drawn)
        out = io.StringIO()
        # No date and no random names: the same runs give the same file.
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, dpi=72)
    return inline(out.getvalue())


def inline(svg: str) -> str:
    """The element alone, without a size of its own and without references to elsewhere."""
    start = svg.index("<svg ")
    svg = svg[start:]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    match = SIZED.match(svg)
    if match is not None:
        head = re.sub(r' (width|height)="[^"]*"', "", match[0])
        svg = head + svg[match.end() :]
    return svg.replace("<svg ", '<svg role="img" ', 1).strip()


def style(font: str | None) -> dict[Any, Any]:
    """matplotlib's settings for all plots of a report."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "workhorse",
        # The widest first: what it leaves room for fits in any reader's font.
        "font.family": ["DejaVu Sans", font] if font else ["DejaVu Sans"],
        "font.size": 8.5,
        "text.parse_math": False,  # a model's name may hold dollar signs
        "text.color": INK,
        "axes.labelcolor": DIM,
        "axes.edgecolor": LINE,
        "axes.labelsize": 8.5,
        "axes.titlesize": 9.5,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": SOFT,
        "grid.linewidth": 0.8,
        "xtick.color": DIM,
        "ytick.color": DIM,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "lines.linewidth": 1.8,
        "lines.markersize": 5,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
    }


def chinese_font() -> str | None:
    """A font with Chinese that matplotlib finds; None without one."""
    from matplotlib import font_manager

    there = {entry.name for entry in font_manager.fontManager.ttflist}
    return next((name for name in CHINESE if name in there), None)


def height(plot: Plot) -> float:
    """Inches that a plot needs."""
    if isinstance(plot, Promises):
        return 0.9 + 0.3 * len(plot.promises)
    if isinstance(plot, Waterfall):
        return 1.0 + 0.32 * len(plot.found.terms)
    return 3.2


def fill(figure: Figure, plot: Plot, language: Language) -> None:
    """Draw into the figure."""
    axes = figure.add_subplot()
    axes.set_title(plot.title.in_language(language))
    if isinstance(plot, Curves):
        curves(axes, plot, language)
    elif isinstance(plot, Roofline):
        roofline(axes, plot, language)
    elif isinstance(plot, Promises):
        promises(axes, plot, language)
    else:
        waterfall(axes, plot, language)


def curves(axes: Axes, plot: Curves, language: Language) -> None:
    """Lines with their least and most."""
    for series in plot.series:
        line(axes, series, dashed=False)
    for series in plot.dashed:
        line(axes, series, dashed=True)
    log_axes(axes, [p.x for s in plot.series for p in s.points], log=plot.log)
    axes.set_xlabel(plot.x.in_language(language))
    axes.set_ylabel(plot.y.in_language(language))
    axes.legend(loc="best")


def line(axes: Axes, series: Series, *, dashed: bool) -> None:
    """One case's line."""
    colour = COLOURS[series.place % len(COLOURS)]
    x = [p.x for p in series.points]
    y = [p.value for p in series.points]
    spread = [
        [p.value - p.low for p in series.points],
        [p.high - p.value for p in series.points],
    ]
    axes.errorbar(
        x,
        y,
        yerr=spread,
        color=colour,
        marker=MARKERS[series.place % len(MARKERS)],
        markersize=3.5 if dashed else 5,
        linestyle="--" if dashed else "-",
        linewidth=1.0 if dashed else 1.8,
        elinewidth=0.8,
        capsize=2,
        label=None if dashed else series.label,
    )


def log_axes(axes: Axes, xs: list[float], *, log: bool) -> None:
    """Powers of two along, and up where `log`; plain figures on both."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(xs)), [f"{x:g}" for x in sorted(set(xs))])
    axes.minorticks_off()
    if not log:
        axes.set_ylim(bottom=0)
        return
    axes.set_yscale("log", base=2)
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(base=2))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def roofline(axes: Axes, plot: Roofline, language: Language) -> None:
    """Each case's two limits and its points below them."""
    xs = [p.x for roof in plot.roofs for p in roof.points]
    reach = (min(xs), max(max(xs), 8.0) * 1.5)
    for roof in plot.roofs:
        colour = COLOURS[roof.place % len(COLOURS)]
        limit = [
            (x, min(roof.ceiling * x if roof.ceiling else float("inf"), roof.compute or 1e300))
            for x in corner(roof.ceiling, roof.compute, reach)
        ]
        if roof.ceiling or roof.compute:
            axes.plot(*zip(*limit, strict=True), color=colour, linewidth=1.2, alpha=0.75)
        for p in roof.points:
            top = min(roof.ceiling * p.x if roof.ceiling else 1e300, roof.compute or 1e300)
            if top < 1e300:
                axes.plot([p.x, p.x], [p.value, top], color=colour, linewidth=0.8, linestyle=":")
        axes.plot(
            [p.x for p in roof.points],
            [p.value for p in roof.points],
            color=colour,
            marker=MARKERS[roof.place % len(MARKERS)],
            linestyle="none",
            label=named_share(roof.label, roof.ceiling, roof.points[0].x, roof.points[0].value),
        )
    log_axes(axes, [2.0**n for n in range(12) if reach[0] <= 2.0**n <= reach[1]], log=True)
    axes.set_xlabel(
        Text("tokens of a step (streams)", "每步 token 数（并发路数）").in_language(language)
    )
    axes.set_ylabel("tok/s")
    axes.legend(loc="best")


def corner(ceiling: float | None, compute: float | None, reach: tuple[float, float]) -> list[float]:
    """Where the limit bends, between the two ends."""
    xs = [*reach]
    if ceiling and compute and reach[0] < compute / ceiling < reach[1]:
        xs.insert(1, compute / ceiling)
    return xs


def named_share(label: str, ceiling: float | None, x: float, value: float) -> str:
    """The label with the share of the ceiling that one stream reaches."""
    return f"{label}: {value / ceiling:.0%}" if ceiling and x == 1 else label


def promises(axes: Axes, plot: Promises, language: Language) -> None:
    """The promised interval as a band around 1, what came as a mark."""
    from matplotlib.ticker import FuncFormatter

    reach = 1.25
    for row, promise in enumerate(reversed(plot.promises)):
        told, came = promise.predicted, promise.measured
        colour = COLOURS[promise.place % len(COLOURS)]
        low, high = told.low / told.value, told.high / told.value
        axes.barh(row, high - low, left=low, height=0.55, color="#dfe6e9", edgecolor="none")
        ratio = [came.low / told.value, came.value / told.value, came.high / told.value]
        axes.errorbar(
            ratio[1],
            row,
            xerr=[[ratio[1] - ratio[0]], [ratio[2] - ratio[1]]],
            color=colour,
            marker=MARKERS[promise.place % len(MARKERS)],
            capsize=2,
            elinewidth=1,
        )
        reach = max(reach, high, 1 / low if low > 0 else 1, ratio[2], 1 / ratio[0])
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xscale("log", base=2)
    reach = min(reach * 1.08, 64)
    axes.set_xlim(1 / reach, reach)
    near = (0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5) if reach < 1.7 else (0.25, 0.5, 0.7, 1, 1.4, 2, 4)
    steps = [step for step in near if 1 / reach <= step <= reach]
    if reach > 8:
        steps = [step for step in (1 / 32, 1 / 8, 1 / 2, 1, 2, 8, 32) if 1 / reach <= step <= reach]
    axes.minorticks_off()
    axes.set_xticks(steps)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.2g}×"))
    axes.set_yticks(
        range(len(plot.promises)),
        [p.label.in_language(language) for p in reversed(plot.promises)],
        color=INK,
    )
    axes.set_ylim(-0.6, len(plot.promises) - 0.4)
    axes.grid(visible=False, axis="y")


def waterfall(axes: Axes, plot: Waterfall, language: Language) -> None:
    """One bar a term, each beginning where the one above ends; the speed left stands at its end."""
    found = plot.found
    start_s = 0.0
    count = len(found.terms)
    for place, term in enumerate(found.terms):
        row = count - 1 - place
        end_s = start_s + term.seconds
        axes.barh(
            row,
            term.seconds * 1e3,
            left=start_s * 1e3,
            height=0.62,
            color=TERM_COLOURS.get(term.code, DIM),
            alpha=1.0 if term.clear or term.basis == "plan" else 0.45,
        )
        axes.errorbar(
            end_s * 1e3,
            row,
            xerr=[[(term.seconds - term.low_s) * 1e3], [(term.high_s - term.seconds) * 1e3]],
            color=INK,
            elinewidth=0.9,
            capsize=2,
            linestyle="none",
        )
        most_s = max(end_s, start_s, start_s + term.high_s)
        rate = f" → {three_digits(1 / end_s)} tok/s" if end_s > 0 else ""
        axes.annotate(
            f"{term.seconds * 1e3:.2f} ms{rate}",
            (most_s * 1e3, row),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
        if place + 1 < count:
            axes.plot([end_s * 1e3] * 2, [row - 0.69, row - 0.31], color=DIM, linewidth=0.7)
        start_s = end_s
    axes.set_yticks(
        range(count), [t.what.in_language(language) for t in reversed(found.terms)], color=INK
    )
    axes.set_xlim(left=0)
    axes.margins(x=0.28)
    axes.set_xlabel(Text("ms per token", "毫秒/token").in_language(language))
    axes.grid(visible=False, axis="y")
