"""What an owner should know of each card: the recipe that works, and what is odd about it."""

from collections.abc import Iterable

from workhorse.doctor.card_kinds import CardKind
from workhorse.doctor.rule_words import SOFTWARE, sureness
from workhorse.knowledge.compat import Facts
from workhorse.knowledge.gpus import Capability, Card, Generation, vgpu_card_name
from workhorse.knowledge.recipes import Recipe, recipes_for
from workhorse.records import Finding
from workhorse.text import Text, same
from workhorse.units import show_bytes

_TABLES = "workhorse knowledge/gpus.toml, 2026-11"


def card_notes(
    kind: CardKind, facts: Facts, beside: Iterable[Capability] = ()
) -> tuple[Finding, ...]:
    """An unknown card; its oddities; a GPU that is missing of its board; the recipe for it.

    `beside`: the compute capabilities of the other cards, which a build shall serve as well.
    """
    notes = []
    if vgpu_card_name(kind.name):
        notes.append(_share(kind))
    elif kind.card is None:
        notes.append(_unknown(kind))
    elif odd := kind.card.odd:
        notes.append(_odd(kind.label, kind.card, odd))
    if missing := _missing_gpus(kind):
        notes.append(missing)
    if kind.capability is not None and kind.generation is not None:
        found = recipes_for(kind.capability, beside)
        if found:
            notes.append(_recipe(kind.label, found, facts))
        else:
            notes.append(_no_recipe(kind.label, kind.generation))
    return tuple(notes)


def _unknown(kind: CardKind) -> Finding:
    told = [f"name {kind.name}"]
    if kind.pci_id:
        told.append(f"PCI id {kind.pci_id}")
    if kind.pci_subsystem:
        told.append(f"subsystem {kind.pci_subsystem}")
    if kind.memory_bytes is not None:
        told.append(f"memory {show_bytes(kind.memory_bytes)}")
    if kind.capability is not None:
        told.append(f"compute capability {kind.capability[0]}.{kind.capability[1]}")
    generation = kind.generation
    if generation is not None:
        why = Text(
            "Its rated speed and oddities are not known. What holds for every "
            f"{generation.name} card is still told.",
            f"不知道它的标称速度和特殊之处；适用于所有 {generation.name} 卡的结论仍会给出。",
        )
    else:
        why = Text(
            "Its compute capability is not in the tables either, so nothing can be said about what"
            " runs on it.",
            "它的计算能力也不在已知范围内，因此无法判断哪些软件能在它上面运行。",
        )
    return Finding(
        code="card.unknown",
        level="note",
        seen=Text(
            f"{kind.label.en} is a card, or a variant of one, that is not known here.",
            f"未收录的显卡或变体：{kind.label.zh}。",
        ),
        why=why,
        remedy=Text(
            "Please report it with the capture that this command writes.",
            "请运行此命令生成机器信息并反馈给我们。",
        ),
        source=_TABLES,
        command="workhorse probe --save capture",
        evidence=tuple(told),
    )


def _share(kind: CardKind) -> Finding:
    return Finding(
        code="card.vgpu",
        level="note",
        seen=Text(
            f"{kind.label.en} is a share of a card that the host of this virtual machine hands out"
            " (vGPU).",
            f"{kind.label.zh} 是宿主机分给本虚拟机的一部分显卡（vGPU）。",
        ),
        why=Text(
            "Its speed depends on the other shares. Without a licence NVIDIA's driver slows a vGPU"
            " down a while after the start.",
            "其速度受同卡其他 vGPU 影响。没有许可证时，NVIDIA 驱动会在启动一段时间后"
            "限制 vGPU 的性能。",
        ),
        remedy=Text(
            "See whether it says `Licensed`; driver and kernel module must be those of the vGPU"
            " release of the host.",
            "请确认其状态为 `Licensed`；驱动须使用与宿主机 vGPU 版本配套的版本。",
        ),
        source="NVIDIA vGPU software user guide, from memory",
        command="nvidia-smi -q | grep -iA2 licens",
        evidence=(f"name {kind.name}",),
        sure="likely",
    )


def _odd(label: Text, card: Card, odd: Text) -> Finding:
    return Finding(
        code="card.odd",
        level="note",
        seen=label,
        why=odd,
        remedy=Text("Nothing to do; plan with it.", "无需操作，规划时请考虑这一点。"),
        source=card.source,
        sure=sureness(card.confidence),
    )


def _missing_gpus(kind: CardKind) -> Finding | None:
    board = kind.card.gpus_on_board if kind.card else 1
    if kind.card is None or not kind.shown or kind.gpus % board == 0:
        return None
    return Finding(
        code="card.gpus-missing",
        level="warning",
        seen=Text(
            f"{kind.card.name}: {kind.gpus} GPUs are here, but a board carries {board}.",
            f"{kind.card.name}：检测到 {kind.gpus} 个 GPU，但每块板上有 {board} 个。",
        ),
        why=Text(
            "A GPU of the board is handed to something else, or it failed.",
            "板上有 GPU 被分配给其他用途，或已出故障。",
        ),
        remedy=Text(
            "Compare with the bus, and look at the kernel's log.",
            "请与 PCI 总线上的设备对比，并查看内核日志。",
        ),
        source=kind.card.source,
        command="lspci -d 10de:",
        share_lost=1 - kind.gpus / (-(-kind.gpus // board) * board),
        sure="likely",
    )


def _recipe(label: Text, found: tuple[Recipe, ...], facts: Facts) -> Finding:
    """The best recipe whose needs this machine meets, else the best; the others by name."""
    best = next((recipe for recipe in found if not recipe.unmet(facts)), found[0])
    others = [recipe for recipe in found if recipe is not best]
    first, start = _first(best, facts), _start(best)
    return Finding(
        code="card.recipe",
        level="note",
        seen=Text(
            f"{label.en}: the recipe is {', '.join(best.versions)}.",
            f"{label.zh}：推荐方案为 {'、'.join(best.versions)}。",
        ),
        why=Text(
            f"{best.gives.en} It gives up: {best.gives_up.en}{_also(others).en}",
            f"{best.gives.zh}代价：{best.gives_up.zh}{_also(others).zh}",
        ),
        remedy=Text(
            f"{first.en}Install it with the command below, then start it: {start.en}",
            f"{first.zh}用下面的命令安装，然后启动：{start.zh}",
        ),
        source=best.source,
        command=" && ".join(best.install),
        evidence=tuple(f"{need} {facts[need]}" for need in best.needs if need in facts),
        sure=sureness(best.confidence),
    )


def _start(recipe: Recipe) -> Text:
    by_hand = " ".join((*recipe.environment, recipe.start))
    if recipe.engine != "llama.cpp":
        return same(by_hand)
    ours = "workhorse up MODEL.gguf --engine build/bin/llama-server"
    return Text(f"{ours} (or by hand: {by_hand})", f"{ours}（或手动：{by_hand}）")


def _first(recipe: Recipe, facts: Facts) -> Text:
    lacking = recipe.unmet(facts)
    if not lacking:
        return same("")
    needed = ", ".join(f"{need} {recipe.needs[need]}" for need in lacking)
    here = ", ".join(str(facts[need]) for need in lacking)
    return Text(
        f"First, this machine must have {needed} (now {here}). ",
        f"本机需先满足 {needed}（目前为 {here}）。",
    )


def _also(others: list[Recipe]) -> Text:
    if not others:
        return same("")
    listed = Text(
        " ".join(f"{r.versions[0]}: {r.gives.en}" for r in others),
        "".join(f"{r.versions[0]}：{r.gives.zh}" for r in others),
    )
    return Text(f" Also possible: {listed.en}", f"其他选择：{listed.zh}")


def _no_recipe(label: Text, generation: Generation) -> Finding:
    engines = ", ".join(SOFTWARE[name] for name in ("llama.cpp", "vllm", "lmdeploy", "sglang"))
    return Finding(
        code="card.no-recipe",
        level="warning",
        seen=Text(
            f"{label.en} ({generation.name}): no engine is known to run on it.",
            f"{label.zh}（{generation.name}）：没有已知引擎能在它上面运行。",
        ),
        why=Text(
            f"{engines}: none has code for this compute capability.",
            f"{engines} 都没有适用于该计算能力的代码。",
        ),
        remedy=Text("Run models on the CPU.", "请在 CPU 上运行模型。"),
        source=_TABLES,
        share_lost=1.0,
    )
