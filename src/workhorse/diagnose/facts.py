"""Facts that speak for or against a cause: of the machine, and those the log itself tells."""

import re
from collections.abc import Mapping

from workhorse.diagnose.scan import Scanner
from workhorse.knowledge.diagnoses import FactRule
from workhorse.records import Machine
from workhorse.text import Text

# Each fact has every value that was seen: a box may have two kinds of card.
Facts = Mapping[str, frozenset[str]]

# What logs tell of the machine: expressions with one group, the fact they give.
TELLING: dict[str, str] = {
    (
        r"compute capability(?: \(CC\)| detected)?[ :=(]{1,3}(?:sm_)?(\d{1,2}\.\d)\b"
        r"(?! ?(?:\+|or |and ))"
    ): "capability",
    r"CUDA capability (?:sm_)?(\d{1,2}\.?\d)\b": "capability",
    r"Current capability: ?(\d\.?\d)\b": "capability",
    r"compute=\W?(\d{1,2}\.\d)\b": "capability",
    r"\b(Tesla (?:K80|K40\w?|M\d0|P100|P40|P4|V100S?|T4)|Quadro (?:GV100|GP100|RTX \d000))": "card",
    r"NVIDIA (A100|A10|A30|A40|H100|H200|H20|L4|L40S?|GeForce [GR]TX \d{3,4})": "card",
    r"(?:Driver|KMD) Version: ?(\d{3}\.[\d.]+)": "driver",
    r"driver[ _]version[\"'=: ]{1,4}(\d{3}\.[\d.]+)": "driver",
    r"\bdriver=(\d{3})\b": "driver",
    r"CUDA : ARCHS = ([\d,]+)": "built_for",
    r"compute capabilit(?:y|ies).{0,60}?compiled.{0,60}?\[([\d ,.]+)\]": "built_for",
    r"supports CUDA capabilities ((?:(?:sm|compute)_\d+ ?)+)": "built_for",
    r"- (\d{1,2}\.\d) which supports hardware CC": "built_for",
    r"\bmin sm\W{1,4}(\d{2,3})\b": "built_for",
    r"\bmin_sm\W{1,4}(\d{2,3})\b": "built_for",
    r"\bminimum sm\W{1,4}(\d{2,3})\b": "built_for",
    r"\b(vllm|lmdeploy|sglang|ollama|llama-server|llama_model_load|llama_context|turbomind)": (
        "engine"
    ),
    r"found (\d+) CUDA devices": "gpus",
    r"NUMA node\(s\):\s+(\d+)": "nodes",
    r"available: (\d+) nodes": "nodes",
    r"Core\(s\) per socket:\s+(\d+)": "node_cores",
    r"package=\d+ cores=(\d+)": "node_cores",
    r"\bn_threads = (\d+)": "threads",
    r"num_thread\W{1,4}(\d+)": "threads",
    r"--threads[ =](\d+)": "threads",
    r"iommu: Default domain type: (Translated|Passthrough)": "iommu",
    r"Xeon\b.{0,12} E5-\d{4}\w? (v[1-4])\b": "avx2",
    r"max locked memory\s+\(kbytes, -l\) (\d+)": "memlock_mib",
}
_CAPABILITY_OF_CARD = {
    "tesla k80": "3.7", "tesla k40": "3.5", "tesla m40": "5.2", "tesla m60": "5.2",
    "tesla m10": "5.0", "tesla p100": "6.0", "quadro gp100": "6.0", "tesla p40": "6.1",
    "tesla p4": "6.1", "tesla v100": "7.0", "tesla v100s": "7.0", "quadro gv100": "7.0",
    "tesla t4": "7.5", "a100": "8.0", "a30": "8.0", "a10": "8.6", "a40": "8.6", "h100": "9.0",
    "h200": "9.0", "h20": "9.0", "l4": "8.9", "l40": "8.9", "l40s": "8.9",
}  # fmt: skip  # CUDA's list of GPUs and their compute capability, 2026-11
_ENGINES = {
    "llama_model_load": "llama.cpp",
    "llama_context": "llama.cpp",
    "llama-server": "llama.cpp",
    "turbomind": "lmdeploy",
}
_IOMMU = {"translated": "translating"}
# Intel ARK, 2026-11: Haswell (v3) was the first Xeon E5 with AVX2.
_AVX2 = {"v1": "false", "v2": "false", "v3": "true", "v4": "true"}
_ARCHITECTURE = re.compile(r"(sm_|compute_)?(\d{1,4})(\.\d)?")
# How a fact is named to users; the values stand behind it.
NAMES = {
    "avx2": Text("AVX2", "AVX2"),
    "capability": Text("compute capability", "计算能力"),
    "code_for_card": Text("build has code for the card", "构建含该卡代码"),
    "driver": Text("driver", "驱动"),
    "engine": Text("engine", "引擎"),
    "gpus": Text("cards", "显卡数"),
    "iommu": Text("IOMMU", "IOMMU"),
    "memlock_mib": Text("MiB that may be locked", "可锁定内存（MiB）"),
    "nodes": Text("memory nodes", "内存节点数"),
    "threads_over_node": Text("more threads than a node has cores", "线程数超过单节点核心数"),
}
_COMPARISON = re.compile(r"(<=|>=|!=|<|>|=)(.+)")


def facts_of_log(scanner: Scanner) -> dict[str, frozenset[str]]:
    """What the log tells of the machine it comes from."""
    found: dict[str, set[str]] = {}
    for expression, fact in TELLING.items():
        seen = scanner.seen.get(expression)
        for groups in seen.groups if seen else ():
            found.setdefault(fact, set()).update(_normal(fact, groups[0].strip().lower()))
    for card in found.get("card", set()):
        if capability := _CAPABILITY_OF_CARD.get(card.rstrip("mc") if "k40" in card else card):
            found.setdefault("capability", set()).add(capability)
    return {fact: frozenset(values) for fact, values in found.items() if values}


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
    for node in {core.node for core in machine.cpu.cores}:
        note("node_cores", sum(core.node == node for core in machine.cpu.cores))
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


def with_conclusions(facts: Facts) -> Facts:
    """The facts, and those that follow from two of them.

    `code_for_card`: `no` where every architecture of the build is newer than a card, `yes` where
    one fits. `threads_over_node`: whether more threads run than one of several nodes has cores.
    """
    more: dict[str, frozenset[str]] = {}
    cards, built = _versions(facts, "capability"), _versions(facts, "built_for")
    if cards and built:
        more["code_for_card"] = frozenset(
            "no" if all(b > card for b in built) else "yes"
            for card in cards
            if all(b > card for b in built) or any(b[0] == card[0] and b <= card for b in built)
        )
    cores, threads = _versions(facts, "node_cores"), _versions(facts, "threads")
    if cores and threads and max(_versions(facts, "nodes"), default=(1,)) > (1,):
        more["threads_over_node"] = frozenset({str(max(threads) > min(cores)).lower()})
    return {**facts, **{fact: values for fact, values in more.items() if values}}


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


def _versions(facts: Facts, fact: str) -> list[tuple[int, ...]]:
    return [v for value in facts.get(fact, ()) if (v := _version(value)) is not None]


def _version(text: str) -> tuple[int, ...] | None:
    parts = text.strip().split(".")
    whole = all(p.isascii() and p.isdecimal() and len(p) < 10 for p in parts)
    return tuple(map(int, parts)) if whole else None


def _normal(fact: str, value: str) -> tuple[str, ...]:
    """The values that the words of a log give, in the form the rules compare."""
    match fact:
        case "capability" if "." not in value:  # sm_70
            return (f"{value[:-1]}.{value[-1]}",)
        case "built_for":
            return _architectures(value)
        case "memlock_mib":  # the shell says kilobytes
            return (str(int(value[:12]) // 1024),)
        case "engine":
            return (_ENGINES.get(value, value),)
        case "iommu":
            return (_IOMMU.get(value, value),)
        case "avx2":
            return (_AVX2[value],)
    return (value,)


def _architectures(text: str) -> tuple[str, ...]:
    """`500,610,700`, `sm_70 sm_75`, `7.5` or `86` as compute capabilities."""
    found = []
    for prefix, number, decimal in _ARCHITECTURE.findall(text):
        value = int(number)
        if decimal:
            found.append(f"{value}{decimal}")
        elif prefix or value < 200:  # sm_70, sm_120; ggml writes 700 and 1200
            found.append(f"{value // 10}.{value % 10}")
        else:
            found.append(f"{value // 100}.{value % 100 // 10}")
    return tuple(found)
