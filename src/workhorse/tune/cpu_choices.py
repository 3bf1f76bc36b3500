"""CPUs, threads, memory nodes, pages and waiting: what can be tried on the processor's side. Pure.

Gains in `seen` are the largest that were measured or published, and order the variables.
"""

from collections.abc import Iterable

from workhorse.knowledge.llamacpp_flags import spell
from workhorse.plan.cpus import allowed_cores, allowed_memory, quota_cut
from workhorse.plan.pages import HUGE_PAGES_NEED_GLIBC, glibc_at_least
from workhorse.records import Core, EngineBuild
from workhorse.text import Text
from workhorse.tune.offer import Around, NotHere, Offer, sorted_numbers
from workhorse.tune.settings import HUGE, LOCAL

ALL_ON_CARDS = Text(
    "Every weight that a token reads lies on a card: main memory and its threads hardly matter.",
    "每个词元读取的权重都在显卡上：内存与线程几乎没有影响。",
)


def cpus(around: Around) -> Offer | NotHere:
    """One node, every node, each with and without the second threads of its cores."""
    if not around.reads_ram:
        return NotHere("cpus", ALL_ON_CARDS)
    by_node = allowed_cores(around.given.machine)
    mine = set(around.plan.cpus)
    here = [core for group in by_node.values() for core in group if mine & set(core.cpus)]
    nodes = {core.node for core in here}
    sets = [here, [core for node in nodes for core in by_node[node]]]
    sets += [[core for group in by_node.values() for core in group]]
    values = {cpu_words(around.plan.cpus)}
    for cores in sets:
        values |= {cpu_words(every_thread(cores)), cpu_words(first_threads(cores))}
    values.discard("")
    if len(values) < 2:
        return NotHere(
            "cpus",
            Text(
                "One node, and one thread for each core: there is no other set of CPUs.",
                "只有一个节点，且每核一个线程：没有其他 CPU 组合。",
            ),
        )
    because = Text(
        "Two sockets have twice the bandwidth, and half of the reads cross the link; the second "
        "threads of cores can help or hinder.",
        "双路内存带宽加倍，但一半读取要跨插槽；超线程可能有益也可能有害。",
    )
    now = cpu_words(around.plan.cpus)
    return Offer("cpus", now, tuple(sorted(values)), False, because, 1.3, True)


def threads(around: Around) -> Offer | NotHere:
    """From one thread to one for each logical CPU of the set."""
    plan = around.plan
    if not around.reads_ram:
        return NotHere("threads", ALL_ON_CARDS)
    most = quota_cut(len(plan.cpus), around.given.machine.limits.quota_cpus)
    if most < 2:
        return NotHere("threads", Text("Only one CPU may be used.", "只有一个可用 CPU。"))
    by_node = allowed_cores(around.given.machine)
    mine = set(plan.cpus)
    cores = sum(bool(mine & set(core.cpus)) for group in by_node.values() for core in group)
    cores = cores or most
    wanted = {cores // 4, cores // 2, cores * 3 // 4, cores - 2, cores - 1, cores, most}
    values = {n for n in wanted if 1 <= n <= most}
    because = Text(
        "Decode waits for memory, not for cores: fewer threads meet sooner, and leave a core to "
        "the gateway.",
        "解码受限于内存而非核心：线程少则同步快，还能给网关留出核心。",
    )
    return Offer(
        "threads",
        str(plan.threads),
        sorted_numbers(values, plan.threads),
        True,
        because,
        1.15,
        True,
    )


def numa(around: Around) -> Offer | NotHere:
    """Memory of the CPUs' own node, of all nodes by turns, or as the kernel gives it."""
    machine, plan = around.given.machine, around.plan
    with_memory = allowed_memory(machine, (node.index for node in machine.nodes)) or ()
    if len(with_memory) < 2:
        return NotHere("numa", Text("There is one memory node.", "只有一个内存节点。"))
    if not around.reads_ram:
        return NotHere("numa", ALL_ON_CARDS)
    now = LOCAL if plan.memory_nodes is None else cpu_words(plan.memory_nodes)
    own = {core.node for group in allowed_cores(machine).values() for core in group
           if set(core.cpus) & set(plan.cpus)}  # fmt: skip
    values = {now, LOCAL, cpu_words(with_memory)}
    if len(own) == 1 and own <= set(with_memory):
        values.add(cpu_words(tuple(own)))
    because = Text(
        "Interleaved memory has the bandwidth of all nodes, bound memory is near.",
        "交错分布可用全部节点的带宽，绑定则距离最近。",
    )
    return Offer("numa", now, tuple(sorted(values)), False, because, 1.25, around.decodes)


def load(around: Around) -> Offer | NotHere:
    """Read or mapped, with huge pages or without, locked or not."""
    if not around.reads_ram:
        return NotHere("load", ALL_ON_CARDS)
    plan, machine = around.plan, around.given.machine
    thp = machine.memory.thp
    huge = thp == "always" or (
        thp == "madvise" and glibc_at_least(machine.system.glibc, HUGE_PAGES_NEED_GLIBC)
    )
    held = sum(line.n_bytes for line in plan.budget if line.device == "RAM")
    lock = machine.memory.memlock_bytes
    values = ["none", "mmap"]
    values += ["none" + HUGE] * huge
    if lock is None or lock >= held:
        values += ["mlock" + (HUGE if huge else "")]
    knows = around.plan.engine
    told = [
        v for v in values if spell("load mode", v.split()[0], knows.knows, knows.forms) is not None
    ]
    now = plan.load_mode + (HUGE if plan.huge_pages else "")
    values = sorted({now, *told})
    if len(values) < 2:
        return NotHere("load", Text("This build loads in one way.", "该构建只有一种加载方式。"))
    because = Text(
        "Huge pages spare the walk through page tables: decode +13 to +30 % measured on CPUs.",
        "大页减少页表查找：CPU 实测解码快 13–30 %。",
    )
    return Offer("load", now, tuple(values), False, because, 1.3, around.decodes)


def can_load(build: EngineBuild, value: str) -> bool:
    """Whether a build can be told to load in this way."""
    return spell("load mode", value.removesuffix(HUGE), build.knows, build.forms) is not None


def spin(around: Around) -> Offer | NotHere:
    """A short wait that gives the core back, or a long one that keeps it."""
    if not around.reads_ram:
        return NotHere("spin", ALL_ON_CARDS)
    if around.plan.engine.openmp is False:
        return NotHere(
            "spin", Text("This build has no OpenMP barrier.", "该构建没有 OpenMP 栅栏。")
        )
    if around.plan.threads < 2:
        return NotHere("spin", Text("One thread waits for no other.", "单线程无需等待。"))
    because = Text(
        "A long spin is up to 10 % faster on a quiet machine, and many times slower on a busy one.",
        "长自旋在空闲机器上最多快 10 %，在繁忙机器上会慢许多倍。",
    )
    return Offer("spin", around.plan.spin, ("bounded", "default"), False, because, 1.1, False)


def cpu_words(numbers: Iterable[int]) -> str:
    """Numbers as the kernel writes a list: `0-13,28-41`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def every_thread(cores: Iterable[Core]) -> list[int]:
    """All logical CPUs of these cores."""
    return [cpu for core in cores for cpu in core.cpus]


def first_threads(cores: Iterable[Core]) -> list[int]:
    """One logical CPU of each of these cores."""
    return [core.cpus[0] for core in cores]
