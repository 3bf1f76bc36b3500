"""Why one engine, several, or cards together: in both languages."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workhorse.records import EngineBuild, Finding, Machine, Model, Rejected, Split
from workhorse.text import Text
from workhorse.units import show_bytes, three_digits

if TYPE_CHECKING:
    from workhorse.plan.several_tried import Tried

# Speeds that differ by less are the same to whoever reads them.
NO_MORE = 1.05


def people(users: int) -> Text:
    """So many users, in words."""
    return Text("one user" if users == 1 else f"{users} users", f"{users} 个用户")


def chosen_words(way: "Tried", users: int, *, asked: bool) -> Text:
    """Why this way is taken."""
    who, engines = people(users), len(way.plans)
    if asked:
        return Text("As asked.", "按用户要求。")
    if way.split == "replicas":
        kind = {"one": Text("each with all of the model", "各自持有完整模型")}.get(
            way.within, Text("each over several cards", "各自跨多张卡")
        )
        return Text(
            f"{engines} engines, {kind.en}: {who.en} at a time get the most in all, and one lost "
            "leaves the others serving.",
            f"{engines} 个引擎，{kind.zh}：{who.zh}并发时总吞吐最高，某个故障时其余继续服务。",
        )
    if way.split == "one":
        slots = "one slot" if way.slots == 1 else f"{way.slots} slots"
        return Text(
            f"The smallest set that serves {who.en}: one engine with {slots}.",
            f"满足 {who.zh}的最小集合：一个引擎，{way.slots} 个槽位。",
        )
    if way.split == "layer":
        return Text(
            f"One engine over {way.cards} cards, whole layers on each: one handover a token "
            "between them, so that slow links cost little.",
            f"一个引擎跨 {way.cards} 张卡，各卡持有整层：每个词元在卡间只传递一次，"
            "链路慢也影响不大。",
        )
    return Text(
        f"{way.cards} cards compute every layer together: the links between them are fast enough.",
        f"{way.cards} 张卡共同计算每一层：卡间链路足够快。",
    )


def losing_words(way: "Tried", best: "Tried", users: int) -> Text:
    """Why this way is not taken."""
    if way.experimental is not None:
        return way.experimental
    mine, theirs, who = way.total(users), best.total(users), people(users)
    gain = mine / theirs if theirs and mine else None
    if way.slots < users:
        return Text(
            f"{way.slots} slots for {who.en}: the others would wait.",
            f"{who.zh}只有 {way.slots} 个槽位，其余需排队。",
        )
    if gain is None:
        return Text("No speed of it is known.", "速度未知。")
    get, get_zh = three_digits(mine), three_digits(theirs)
    if way.cards > best.cards and gain < NO_MORE:
        return Text(
            f"More cards and no more speed: {who.en} would get {get} tok/s in all.",
            f"占用更多的卡却不更快：{who.zh}合计 {get} tok/s。",
        )
    if get == get_zh:
        return Text(
            f"{who.en} would get as much, {get} tok/s in all.", f"{who.zh}合计同为 {get} tok/s。"
        )
    if gain > 1:
        but = Text("but are served as it is.", "但现方案已够用。")
        if not best.serves(users):
            but = Text("too little more for what it takes.", "增益不值得多占的资源。")
        option = f" --engines {len(way.plans)} takes it." if way.split == "replicas" else ""
        option_zh = f"用 --engines {len(way.plans)} 可启用。" if option else ""
        return Text(
            f"{who.en} would get {get} tok/s in all instead of {get_zh}, {but.en}{option}",
            f"{who.zh}合计可达 {get} tok/s（现为 {get_zh}），{but.zh}{option_zh}",
        )
    return Text(
        f"{who.en} would get {get} tok/s in all, {gain:.0%} of what is taken.",
        f"{who.zh}合计 {get} tok/s，为所选方案的 {gain:.0%}。",
    )


def too_small(group: Sequence[int], machine: Machine) -> Rejected:
    """Cards that cannot hold the model by themselves."""
    named = ", ".join(f"GPU {index}" for index in group)
    sizes = [gpu.memory_total_bytes for gpu in machine.gpus if gpu.index in group]
    room = show_bytes(sum(size for size in sizes if size is not None))
    return Rejected(
        f"an engine on {named}",
        Text(
            f"The model does not fit {named} ({room}) whole, with its headroom.",
            f"{named}（{room}）扣除余量后放不下整个模型。",
        ),
    )


def one_card_each(build: EngineBuild) -> Rejected:
    """An engine whose plans use one card."""
    return Rejected(
        "tensor split",
        Text(
            f"Plans for {build.engine} use one card each so far; several of them work side by "
            "side.",
            f"{build.engine} 的方案目前每个只用一张卡；可并列运行多个。",
        ),
    )


def nodes_too_small(model: Model) -> Rejected:
    """A model that is larger than one node's memory."""
    size = show_bytes(model.weight_bytes)
    return Rejected(
        "one engine a memory node",
        Text(
            f"{size} of weights do not fit the free memory of each node.",
            f"{size} 权重放不进每个内存节点的空闲内存。",
        ),
    )


def named_by_user(split: Split | None, engines: int | None) -> str:
    """The options in which the user said it."""
    words = (f"--split {split}" if split else "", f"--engines {engines}" if engines else "")
    return " ".join(word for word in words if word)


def not_as_asked(split: Split | None, engines: int | None, started: int) -> Finding:
    """A warning that what the user named is not what is started."""
    named = named_by_user(split, engines)
    count = "1 engine is" if started == 1 else f"{started} engines are"
    return Finding(
        code="plan.not-as-asked",
        level="warning",
        seen=Text(
            f"{named} cannot be had here: {count} started.",
            f"{named} 在本机无法实现：将启动 {started} 个引擎。",
        ),
        why=Text(
            "A card may be missing or in use, or the model may need more room than was thought.",
            "可能有显卡缺失或被占用，或模型所需空间超出预期。",
        ),
        remedy=Text(
            "Look at the ways that there are, and why others are not.",
            "请查看可行的方式，以及其余方式为何不可行。",
        ),
        source="plan/several.py",
        command="workhorse plan",
    )


def forced_impossible(split: Split | None, engines: int | None) -> Rejected:
    """What the user named and no way offers."""
    named = named_by_user(split, engines)
    return Rejected(
        named,
        Text(
            "No way that works here has it: the best of the others is taken.",
            "本机没有可行的此类方式：改用其余方式中最好的。",
        ),
    )
