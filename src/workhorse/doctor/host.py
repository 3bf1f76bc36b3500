"""What to set on a host: for each setting the value it has, the best one, why, and its cost."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from workhorse.knowledge.host_settings import Knob, Recommendation, knobs, recommendations
from workhorse.plan.pages import glibc_at_least
from workhorse.records import Gpu, Machine
from workhorse.text import Text
from workhorse.units import show_bytes

State = Literal["change", "by hand", "good", "no matter", "not here", "unknown"]


@dataclass(frozen=True, slots=True)
class Change:
    """One file to write; `path` is without its leading slash."""

    knob: str
    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Advice:
    """One setting. `change`: `host apply` would do it; `by hand`: only its commands are given."""

    knob: str
    label: Text
    state: State
    current: str | None  # several different ones with how often: `powersave (54), performance (2)`
    recommended: str | None
    offered: tuple[str, ...]  # the values that the kernel takes; (): any number, or unknown
    why: Text
    cost: Text | None
    source: str
    changes: tuple[Change, ...] = ()
    commands: tuple[str, ...] = ()


def advise(
    machine: Machine, current: Mapping[str, str], read_only: frozenset[str] = frozenset()
) -> tuple[Advice, ...]:
    """Advice on every setting, in the order in which they are to be written.

    `current` holds the text of each setting's files that could be read, by path without the
    leading slash; `read_only` the paths that not even root may write here.
    """
    return tuple(_advise_one(knob, machine, current, read_only) for knob in knobs())


def places_of(knob: Knob, paths: Iterable[str]) -> tuple[str, ...]:
    """Those of `paths` that are the knob's files, CPU 2 before CPU 10."""
    found = [path for path in paths if knob.is_place(path)]
    return tuple(sorted(found, key=lambda path: (len(path), path)))


def choices_path(knob: Knob, place: str) -> str | None:
    """The file that lists the values which `place` takes; None when there is none."""
    return f"{place.rpartition('/')[0]}/{knob.choices}" if knob.choices else None


def _advise_one(
    knob: Knob, machine: Machine, current: Mapping[str, str], read_only: frozenset[str]
) -> Advice:
    if knob.kind == "persistence":
        return _advise_persistence(knob, machine.gpus)
    if knob.kind == "power":
        return _advise_power(knob, machine.gpus)
    advice = _blank(knob, "not here", _NO_SUCH)
    places = places_of(knob, current)
    if not places:
        return advice
    values = {place: knob.value_in(current[place]) for place in places}
    known = {place: value for place, value in values.items() if value is not None}
    if not known:
        return replace(advice, state="unknown", why=_UNREADABLE)
    first = next(iter(known))
    offered = knob.offered(current[first], current.get(choices_path(knob, first) or ""))
    shown = (_shown(knob, value) for value in known.values())
    advice = replace(advice, current=_counted(shown), offered=offered)
    best, undecided = _best(knob, machine, offered)
    if best is None:
        if undecided:
            return replace(advice, state="unknown", why=_UNDECIDED)
        return replace(advice, why=_NOT_OFFERED)
    advice = replace(_with_reasons(advice, best), recommended=best.value)
    if best.value is None:
        return replace(advice, state="no matter")
    value = best.value
    changes = tuple(
        Change(knob.name, place, found, value)
        for place, found in known.items()
        if not _is_good(knob, found, best, machine)
    )
    if not changes:
        return replace(advice, state="good")
    if not knob.written:
        return replace(advice, state="by hand", commands=_commands(knob, value))
    writable = tuple(change for change in changes if change.path not in read_only)
    if not writable:
        return replace(advice, state="not here", why=_read_only(machine))
    return replace(advice, state="change", changes=writable)


def _best(
    knob: Knob, machine: Machine, offered: tuple[str, ...]
) -> tuple[Recommendation | None, bool]:
    """The recommendation that holds, and whether one could not be decided on the way."""
    undecided = False
    for row in recommendations():
        if row.knob != knob.name:
            continue
        held = _holds(row, machine)
        if held is None:
            undecided = True
        elif held and (row.value is None or not offered or row.value in offered):
            return row, undecided
    return None, undecided


def _holds(row: Recommendation, machine: Machine) -> bool | None:
    """Whether the row's conditions are met; None when a fact for it is not known."""
    answers: list[bool | None] = []
    nodes = sum(node.memory_total_bytes != 0 for node in machine.nodes)
    if row.nodes_from is not None:
        answers.append(nodes >= row.nodes_from if nodes else None)
    if row.nodes_to is not None:
        answers.append(nodes <= row.nodes_to if nodes else None)
    if row.swap is not None:
        answers.append(_same(machine.memory.swap_total_bytes, row.swap))
    if row.huge_pages_free is not None:
        answers.append(_same(machine.memory.huge_pages_free, row.huge_pages_free))
    if row.glibc_below is not None:
        glibc = machine.system.glibc
        wanted = tuple(int(part) for part in row.glibc_below.split("."))
        # Of an unknown C library nothing follows: the row for the newer ones is harmless to it.
        answers.append(glibc is not None and not glibc_at_least(glibc, (wanted[0], wanted[1])))
    if False in answers:
        return False
    return None if None in answers else True


def _same(count: int | None, wanted: bool) -> bool | None:
    return None if count is None else (count > 0) == wanted


def _is_good(knob: Knob, value: str, best: Recommendation, machine: Machine) -> bool:
    if value == best.value or value in best.fine:
        return True
    if knob.kind == "memlock":
        total_bytes = machine.memory.total_bytes
        return total_bytes is not None and value.isdigit() and int(value) >= total_bytes
    return best.fine_to is not None and value.isdigit() and int(value) <= best.fine_to


def _advise_persistence(knob: Knob, gpus: tuple[Gpu, ...]) -> Advice:
    told = {gpu.index: gpu.persistence for gpu in gpus if gpu.persistence is not None}
    if not told:
        return _silent_gpus(knob, gpus)
    best = _only_row(knob)
    off = [index for index, on in told.items() if not on]
    advice = _with_reasons(_blank(knob, "by hand" if off else "good", _NO_SUCH), best)
    return replace(
        advice,
        current=_counted("on" if on else "off" for on in told.values()),
        recommended=best.value,
        offered=("on", "off"),
        commands=tuple(line for index in off for line in _commands(knob, "on", index)),
    )


def _advise_power(knob: Knob, gpus: tuple[Gpu, ...]) -> Advice:
    told = [
        (gpu.index, gpu.power_limit_w, gpu.power_limit_default_w)
        for gpu in gpus
        if gpu.power_limit_w is not None and gpu.power_limit_default_w is not None
    ]
    if not told:
        return _silent_gpus(knob, gpus)
    best = _only_row(knob)
    # Drivers report limits to a hundredth of a watt.
    low = [(index, default) for index, limit, default in told if limit < default - 0.5]
    advice = _with_reasons(_blank(knob, "by hand" if low else "good", _NO_SUCH), best)
    return replace(
        advice,
        current=_counted(f"{limit:.0f} W" for _, limit, _ in told),
        recommended=_counted(f"{default:.0f} W" for _, _, default in told),
        commands=tuple(
            line for index, watts in low for line in _commands(knob, f"{watts:.0f}", index)
        ),
    )


def _commands(knob: Knob, value: str, gpu: int | None = None) -> tuple[str, ...]:
    return tuple(
        line.replace("{value}", value).replace("{gpu}", str(gpu)) for line in knob.commands
    )


def _only_row(knob: Knob) -> Recommendation:
    return next(row for row in recommendations() if row.knob == knob.name)


def _silent_gpus(knob: Knob, gpus: tuple[Gpu, ...]) -> Advice:
    return _blank(knob, "unknown" if gpus else "not here", _SILENT if gpus else _NO_GPU)


def _blank(knob: Knob, state: State, why: Text) -> Advice:
    return Advice(
        knob=knob.name,
        label=Text(knob.en, knob.zh),
        state=state,
        current=None,
        recommended=None,
        offered=(),
        why=why,
        cost=None,
        source=knob.source,
    )


def _with_reasons(advice: Advice, best: Recommendation) -> Advice:
    cost = Text(best.cost_en, best.cost_zh) if best.cost_en and best.cost_zh else None
    return replace(advice, why=Text(best.en, best.zh), cost=cost, source=best.source)


def _shown(knob: Knob, value: str) -> str:
    return show_bytes(int(value)) if knob.kind == "memlock" and value.isdigit() else value


def _counted(values: Iterable[str]) -> str:
    """The value that all have, or each with how often: `powersave (54), performance (2)`."""
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{value} ({times})" for value, times in counts.most_common())


def _read_only(machine: Machine) -> Text:
    container = machine.system.container
    if container:
        return Text(
            f"Read-only in this container ({container}): set it on the host.",
            f"在此容器（{container}）中只读：请在宿主机上设置。",
        )
    return Text(
        "Read-only here, as in most containers: set it on the host itself.",
        "此处只读（多数容器如此）：请在宿主机上设置。",
    )


_NO_SUCH = Text(
    "No such setting can be read: the kernel, its driver, the virtual machine, the container or"
    " the capture leaves it out.",
    "读不到这项设置：内核、驱动、虚拟机、容器或采集文件未提供。",
)
_NOT_OFFERED = Text(
    "The kernel does not offer the value that would help.", "内核不提供合适的取值。"
)
_UNREADABLE = Text("Its value could not be read.", "无法读取其取值。")
_UNDECIDED = Text(
    "Facts of this machine that decide it could not be read.", "决定它的机器信息无法读取。"
)
_NO_GPU = Text("No NVIDIA GPU answers here.", "此处没有可用的 NVIDIA GPU。")
_SILENT = Text("The driver does not tell it.", "驱动未给出该信息。")
