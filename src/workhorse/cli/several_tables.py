"""The tables of several cards: every way to use them, and the engines that are to be started."""

from collections.abc import Sequence

from workhorse.cli.plan_tables import show_speed
from workhorse.cli.show import print_table
from workhorse.plan.words import DEVICES
from workhorse.records import Several, StreamSpeed, Way
from workhorse.text import Language, Text
from workhorse.units import UNKNOWN, show_bytes, three_digits

USERS = (1, 4, 16)
WITHIN = {
    "layer": Text("layers", "按层"),
    "row": Text("rows", "按行"),
    "tensor": Text("tensors", "按张量"),
}


def print_ways(found: Several, language: Language) -> None:
    """Every way that was looked at, the one that is taken first; nothing where there is but one."""
    if len(found.ways) > 1:
        on_cards = any(any(way.gpus) for way in found.ways)
        print_table(
            Text("Ways to use the cards; tok/s of all users", "显卡使用方式（所有用户合计 tok/s）")
            if on_cards
            else Text("Ways to use the nodes; tok/s of all users", "节点使用方式（合计 tok/s）"),
            (
                Text("way", "方式"),
                Text("on", "使用"),
                Text("slots", "槽位"),
                Text("1 user", "1 用户"),
                Text("4 users", "4 用户"),
                Text("16 users", "16 用户"),
                Text("prefill", "预填充"),
                Text("fullest", "最满"),
            ),
            (way_row(way, language) for way in found.ways),
            language,
        )
        print_table(
            Text("Why", "理由"),
            (Text("way", "方式"), Text("because", "原因")),
            (
                (way_name(way).in_language(language), why(found, way).in_language(language))
                for way in found.ways
            ),
            language,
        )
    if len(found.plans) > 1:
        print_engines(found, language)


def way_row(way: Way, language: Language) -> tuple[str, ...]:
    """One way as a row."""
    speeds = {speed.streams: speed for speed in way.users}
    prefill = way.prefill_tokens_per_s
    return (
        way_name(way).in_language(language),
        places(way.gpus, way.nodes, language),
        f"{way.slots} × {way.context_tokens}",
        *(total(speeds.get(n)) for n in USERS),
        UNKNOWN if prefill is None else three_digits(prefill.value),
        fullest(way),
    )


def why(found: Several, way: Way) -> Text:
    """Why a way is taken, or not."""
    if way.because is not None:
        return way.because
    because = found.reasons[0].because if found.reasons else Text("the only one", "唯一")
    return Text(f"Taken. {because.en}", f"采用。{because.zh}")


def way_name(way: Way) -> Text:
    """A way in few words: how many engines, and how one shares its cards."""
    within = WITHIN.get(way.within)
    if way.engines == 1:
        return within or Text("one engine", "一个引擎")
    engines = Text(f"{way.engines} engines", f"{way.engines} 个引擎")
    if within is None:
        return engines
    return Text(f"{engines.en}, {within.en}", f"{engines.zh}，{within.zh}")


def places(
    gpus: Sequence[tuple[int, ...]], nodes: Sequence[tuple[int, ...] | None], language: Language
) -> str:
    """The cards of each engine, or its memory nodes."""
    if any(gpus):
        named = [spans(cards) for cards in gpus]
        if all(len(cards) == 1 for cards in gpus):
            named = [spans(sorted(card for cards in gpus for card in cards))]
        return "GPU " + " | ".join(named)
    listed = [", ".join(map(str, node)) for node in nodes if node]
    if not listed:
        return DEVICES["RAM"].in_language(language)
    joined = " | ".join(listed)
    return Text(f"node {joined}", f"节点 {joined}").in_language(language)


def spans(numbers: Sequence[int]) -> str:
    """Numbers in order, runs of them shortened: 0–3, 6."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def total(speed: StreamSpeed | None) -> str:
    """What so many users get together; the interval is in the plan."""
    return UNKNOWN if speed is None else three_digits(speed.total_tokens_per_s.value)


def fullest(way: Way) -> str:
    """The device that holds most, cards before main memory."""
    cards = {device: n for device, n in way.device_bytes.items() if device != "RAM"}
    held = cards or way.device_bytes
    if not held:
        return UNKNOWN
    device = max(held, key=lambda name: held[name])
    return f"{device} {show_bytes(held[device])}"


def print_engines(found: Several, language: Language) -> None:
    """The engines that are to be started together, one row each."""
    print_table(
        Text("Engines", "引擎"),
        (
            Text("engine", "引擎"),
            Text("on", "使用"),
            Text("threads", "线程"),
            Text("slots", "槽位"),
            Text("decode tok/s", "解码 tok/s"),
        ),
        (
            (
                str(position),
                places([plan.gpu_indexes], [plan.memory_nodes], language),
                node_threads(plan.threads, plan.memory_nodes, language),
                f"{plan.slots} × {plan.context_tokens}",
                show_speed(plan.forecast.decode_tokens_per_s),
            )
            for position, plan in enumerate(found.plans, start=1)
        ),
        language,
    )


def node_threads(threads: int, nodes: tuple[int, ...] | None, language: Language) -> str:
    """Threads, and the node that they run on."""
    if not nodes:
        return str(threads)
    listed = ", ".join(map(str, nodes))
    return Text(f"{threads} on node {listed}", f"{threads}（节点 {listed}）").in_language(language)
