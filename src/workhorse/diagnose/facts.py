"""Facts that speak for or against a cause: of the machine, and those the log itself tells."""

import re
from collections.abc import Mapping

from workhorse.diagnose.scan import Scanner
from workhorse.knowledge.diagnoses import FactRule
from workhorse.records import Machine

# Each fact has every value that was seen: a box may have two kinds of card.
Facts = Mapping[str, frozenset[str]]

# What logs tell of the machine: expressions with one group, the fact they give.
TELLING: dict[str, str] = {
    r"compute capability[ :=(]{1,3}(?:sm_)?(\d{1,2}\.\d)\b": "capability",
    r"CUDA capability (?:sm_)?(\d{1,2}\.?\d)\b": "capability",
    r"\b(Tesla (?:K80|K40\w?|M\d0|P100|P40|P4|V100S?|T4)|Quadro (?:GV100|GP100|RTX \d000))": "card",
    r"NVIDIA (A100|A10|A30|A40|H100|H200|H20|L4|L40S?|GeForce [GR]TX \d{3,4})": "card",
    r"Driver Version: ?(\d{3}\.[\d.]+)": "driver",
    r"driver[ _]version[\"'=: ]{1,4}(\d{3}\.[\d.]+)": "driver",
    r"CUDA : ARCHS = ([\d,]+)": "built_for",
    r"compute capabilit(?:y|ies).{0,60}?compiled.{0,60}?\[([\d ,.]+)\]": "built_for",
    r"\b(vllm|lmdeploy|sglang|ollama|llama-server|llama_model_load|turbomind)\b": "engine",
}
_CAPABILITY_OF_CARD = {
    "tesla k80": "3.7", "tesla k40": "3.5", "tesla m40": "5.2", "tesla m60": "5.2",
    "tesla m10": "5.0", "tesla p100": "6.0", "quadro gp100": "6.0", "tesla p40": "6.1",
    "tesla p4": "6.1", "tesla v100": "7.0", "tesla v100s": "7.0", "quadro gv100": "7.0",
    "tesla t4": "7.5", "a100": "8.0", "a30": "8.0", "a10": "8.6", "a40": "8.6", "h100": "9.0",
    "h200": "9.0", "h20": "9.0", "l4": "8.9", "l40": "8.9", "l40s": "8.9",
}  # fmt: skip  # CUDA's list of GPUs and their compute capability, 2026-11
_ENGINES = {"llama_model_load": "llama.cpp", "llama-server": "llama.cpp", "turbomind": "lmdeploy"}
_COMPARISON = re.compile(r"(<=|>=|!=|<|>|=)(.+)")


def facts_of_log(scanner: Scanner) -> dict[str, frozenset[str]]:
    """What the log tells of the machine it comes from."""
    found: dict[str, set[str]] = {}
    for expression, fact in TELLING.items():
        seen = scanner.seen.get(expression)
        for groups in seen.groups if seen else ():
            found.setdefault(fact, set()).add(_normal(fact, groups[0]))
    for card in found.get("card", set()):
        if capability := _CAPABILITY_OF_CARD.get(card.rstrip("mc") if "k40" in card else card):
            found.setdefault("capability", set()).add(capability)
    return {fact: frozenset(values) for fact, values in found.items()}


def facts_of_machine(machine: Machine) -> dict[str, frozenset[str]]:
    """The facts of a probed machine; what is not known is left out."""
    facts: dict[str, set[str]] = {}

    def note(fact: str, value: object) -> None:
        if value is not None:
            facts.setdefault(fact, set()).add(
                str(value).lower() if isinstance(value, bool) else str(value)
            )

    for gpu in machine.gpus:
        if gpu.compute_capability:
            note("capability", "{}.{}".format(*gpu.compute_capability))
        note("card", gpu.name.lower())
        note("persistence", gpu.persistence)
    note("gpus", len(machine.gpus))
    if machine.driver:
        note("driver", machine.driver.version)
        note("driver_cuda", machine.driver.cuda)
        note("open_module", machine.driver.open_module)
    for trouble in machine.gpu_troubles:
        note("gpu_trouble", trouble.code)
    if machine.cpu.flags:
        for flag in ("avx", "avx2", "fma", "f16c", "avx512f"):
            note(flag, flag in machine.cpu.flags)
    note("nodes", len(machine.nodes))
    note("glibc", machine.system.glibc)
    note("libgomp", machine.system.libgomp)
    note("container", None if machine.system.container is None else bool(machine.system.container))
    note("iommu", machine.system.iommu)
    note("numa_balancing", machine.settings.numa_balancing)
    if machine.memory.memlock_bytes is not None:
        note("memlock_mib", machine.memory.memlock_bytes // 1024**2)
    for event in machine.events or ():
        if event.kind == "xid":
            note("xid", event.number)
    return {fact: frozenset(values) for fact, values in facts.items()}


def together(log: Facts, machine: Facts) -> Facts:
    """The facts that hold for the log: the machine's first, unless it is another machine."""
    cards = log.get("capability"), machine.get("capability")
    if cards[0] and cards[1] and not cards[0] & cards[1]:
        return log
    return {**log, **machine}


def applies(rule: FactRule, facts: Facts) -> bool | None:
    """Whether any value of the rule's fact fulfils it; None when the fact is not known."""
    values = facts.get(rule.fact)
    if not values:
        return None
    match = _COMPARISON.fullmatch(rule.when.strip())
    if match is None:
        raise ValueError(f"{rule.when!r} is no comparison")
    operator, wanted = match[1], match[2].strip()
    return any(_holds(value, operator, wanted) for value in values)


def _holds(value: str, operator: str, wanted: str) -> bool:
    if operator in ("=", "!="):
        return (value.lower() == wanted.lower()) == (operator == "=")
    here, there = _version(value), _version(wanted)
    if here is None or there is None:
        return False
    width = max(len(here), len(there))
    a = here + (0,) * (width - len(here))
    b = there + (0,) * (width - len(there))
    return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[operator]


def _version(text: str) -> tuple[int, ...] | None:
    parts = text.strip().split(".")
    return tuple(map(int, parts)) if all(p.isdecimal() and len(p) < 10 for p in parts) else None


def _normal(fact: str, value: str) -> str:
    value = value.strip().lower()
    if fact == "capability" and "." not in value:  # sm_70
        return f"{value[:-1]}.{value[-1]}"
    return _ENGINES.get(value, value) if fact == "engine" else value
