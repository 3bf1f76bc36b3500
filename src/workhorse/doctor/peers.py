"""How cards reach each other and the CPUs: nodes, NVLink, peer access, IOMMU and ACS."""

from collections.abc import Callable, Iterator

from workhorse.doctor.opinion import Opinion, alike, finding, is_rpm_based, is_virtual, named
from workhorse.records import Finding, Gpu, GpuLink, Machine, PeerCopy
from workhorse.text import Text
from workhorse.units import show_bandwidth


def judge_peers(machine: Machine) -> Opinion:
    """The ways between cards, and between a card and the CPUs that serve it."""
    if not machine.gpus:
        return Opinion()
    findings = [*far_nodes(machine), *apart(machine)]
    unchecked = []
    nodes = [node for node in machine.nodes if node.cpus]
    if len(nodes) > 1 and (lost := [gpu for gpu in machine.gpus if gpu.numa_node is None]):
        who = named(lost)
        unchecked.append(
            Text(
                f"The NUMA node of {who.en} is not known, so nothing can be bound beside it.",
                f"不知道 {who.zh}所在的 NUMA 节点，无法就近绑定。",
            )
        )
    good = None
    if len(machine.gpus) > 1:
        if machine.gpu_links:
            findings += [*lost_copies(machine), *hanging_copies(machine)]
            findings += [*no_peer(machine), *no_nvlink(machine), *detours(machine)]
            good = good_peers(machine)
        else:
            unchecked.append(
                Text(
                    "How the cards reach each other (NVLink, peer access) could not be read.",
                    "读不到显卡之间的连接方式（NVLink、点对点访问）。",
                )
            )
    return Opinion(tuple(findings), good, tuple(unchecked))


def far_nodes(machine: Machine) -> Iterator[Finding]:
    """Cards whose node has CPUs, none of which this process may use."""
    allowed = set(machine.limits.cpus)
    near = {node.index: set(node.cpus) for node in machine.nodes}
    if not allowed:
        return

    def far(gpu: Gpu) -> int | None:
        cpus = near.get(gpu.numa_node) if gpu.numa_node is not None else None
        return gpu.numa_node if cpus and not cpus & allowed else None

    for node, gpus in alike(machine.gpus, far):
        who = named(gpus)
        mine = sorted(index for index, cpus in near.items() if cpus & allowed)
        listed = ", ".join(map(str, mine))
        yield finding(
            "link.far-node",
            Text(
                f"{who.en} is on NUMA node {node}; this process may use node {listed} alone.",
                f"{who.zh}位于 NUMA 节点 {node}；本进程只能使用节点 {listed}。",
            ),
            evidence=(f"numa_node {node}", f"CPUs of this process: {len(allowed)}"),
            node=node,
        )


def apart(machine: Machine) -> Iterator[Finding]:
    """Cards that sit on different nodes and have no NVLink between them."""
    linked = {frozenset((p.first, p.second)) for p in machine.gpu_links if p.path == "NVLINK"}
    by_node = alike(machine.gpus, lambda gpu: gpu.numa_node)
    if len(by_node) < 2:
        return
    crossing = [
        (one, other)
        for position, (_, here) in enumerate(by_node)
        for _, there in by_node[position + 1 :]
        for one in here
        for other in there
        if frozenset((one.index, other.index)) not in linked
    ]
    if not crossing:
        return
    placed = [gpu for _, gpus in by_node for gpu in gpus][:8]
    listed = "; ".join(f"node {node}: GPU {numbers(gpus)}" for node, gpus in by_node)
    listed_zh = "；".join(f"节点 {node}：GPU {numbers(gpus)}" for node, gpus in by_node)
    yield finding(
        "link.cards-apart",
        Text(
            f"The cards are on several NUMA nodes ({listed}).",
            f"显卡分布在多个 NUMA 节点（{listed_zh}）。",
        ),
        evidence=(
            *(f"{gpu.pci_address or f'GPU {gpu.index}'}: node {gpu.numa_node}" for gpu in placed),
            *link_lines(machine),
        ),
    )


def no_peer(machine: Machine) -> Iterator[Finding]:
    """Pairs that the driver does not let read each other's memory."""
    pairs = [pair for pair in machine.gpu_links if pair.peer_access is False]
    if not pairs:
        return
    every = len(pairs) == len(machine.gpu_links)
    words = sorted({pair.peer_trouble for pair in pairs if pair.peer_trouble})
    said = f" ({', '.join(words)})" if words else ""
    listed = ", ".join(f"{pair.first}–{pair.second}" for pair in pairs[:6])
    listed += " …" if len(pairs) > 6 else ""
    yield finding(
        "link.no-peer",
        Text(
            ("No card can" if every else f"Cards {listed} cannot")
            + f" read another's memory directly{said}.",
            ("所有显卡之间" if every else f"GPU {listed} 之间") + f"无法直接访问对方显存{said}。",
        ),
        evidence=link_lines(machine),
    )


def lost_copies(machine: Machine) -> Iterator[Finding]:
    """Pairs between which something else arrived than was sent, and no error was told."""
    yield from bad_copies(
        machine,
        "link.peer-wrong",
        lambda copy: copy.right is False,
        Text("arrive with wrong data", "到达的数据是错的"),
    )


def hanging_copies(machine: Machine) -> Iterator[Finding]:
    """Pairs between which a copy never ended."""
    yield from bad_copies(
        machine,
        "link.peer-hangs",
        lambda copy: copy.failure == "hangs",
        Text("never end", "永不结束"),
    )


def bad_copies(
    machine: Machine, code: str, bad: Callable[[PeerCopy], bool], how: Text
) -> Iterator[Finding]:
    """The pairs of which a copy went so. Those through main memory block: any split needs them."""
    for direct in (False, True):
        pairs = [
            link
            for link in machine.gpu_links
            if any(bad(copy) for copy in link.copies if copy.direct == direct)
        ]
        if not pairs:
            continue
        listed = ", ".join(f"{link.first}–{link.second}" for link in pairs[:6])
        listed += " …" if len(pairs) > 6 else ""
        kind = Text("Direct copies", "直接拷贝") if direct else Text("Copies", "拷贝")
        yield finding(
            code,
            Text(
                f"{kind.en} between GPU {listed} {how.en}.",
                f"GPU {listed} 之间的{kind.zh}{how.zh}。",
            ),
            evidence=link_lines(machine),
            level="warning" if direct else "blocker",
        )


def no_nvlink(machine: Machine) -> Iterator[Finding]:
    """SXM cards, made for NVLink, of which no two are linked."""
    made_for_it = [gpu for gpu in machine.gpus if "SXM" in gpu.name.upper()]
    if len(made_for_it) < 2 or any(pair.path == "NVLINK" for pair in machine.gpu_links):
        return
    who = named(made_for_it)
    yield finding(
        "link.no-nvlink",
        Text(f"{who.en} have no NVLink between them.", f"{who.zh}之间没有 NVLink。"),
        evidence=link_lines(machine),
    )


def detours(machine: Machine) -> Iterator[Finding]:
    """IOMMU and ACS in the way of copies between cards that have no NVLink."""
    pairs = [pair for pair in machine.gpu_links if pair.path != "NVLINK"]
    # Cards that cannot copy directly anyway lose nothing by either.
    direct = [pair for pair in pairs if pair.peer_access is not False]
    if not direct or is_virtual(machine):
        return
    certain = any(pair.peer_access for pair in direct)
    if machine.system.iommu == "translating":
        yield finding(
            "link.iommu-translates",
            Text(
                "The IOMMU translates addresses, and several cards copy over PCIe.",
                "IOMMU 处于地址转换模式，而多张显卡要经 PCIe 互拷。",
            ),
            evidence=("iommu: translating", *link_lines(machine)),
            level="warning" if certain else "note",
            rpm=is_rpm_based(machine),
        )
    elif machine.system.acs_redirect and any(pair.path in ("PIX", "PXB") for pair in direct):
        yield finding(
            "link.acs-redirects",
            Text(
                "A bridge above the cards sends their traffic up to the root (ACS).",
                "显卡上方的桥开启了 ACS，把卡间流量重定向到根端口。",
            ),
            evidence=("ACS redirect on", *link_lines(machine)),
            level="warning" if certain else "note",
        )


def numbers(gpus: list[Gpu]) -> str:
    """The indexes of some cards."""
    return ", ".join(str(gpu.index) for gpu in gpus)


def link_lines(machine: Machine) -> tuple[str, ...]:
    """The pairs in nvidia-smi's words, at most eight."""
    return tuple(map(link_line, machine.gpu_links[:8]))


def link_line(pair: GpuLink) -> str:
    """One pair: `0-1 NVLINK x2, peer`."""
    count = f" x{pair.nvlinks}" if pair.nvlinks else ""
    peer = {True: ", peer", False: ", no peer", None: ""}[pair.peer_access]
    said = "".join(f", {copy_line(copy)}" for copy in pair.copies)
    return f"{pair.first}-{pair.second} {pair.path}{count}{peer}{said}"


def copy_line(copy: PeerCopy) -> str:
    """One copy that was tried: `staged 9.4 GB/s 15 µs right`."""
    way = "direct" if copy.direct else "staged"
    if copy.right is None:
        return f"{way} {copy.failure or 'not tried'}"
    rate = "" if copy.bytes_per_s is None else f" {show_bandwidth(copy.bytes_per_s)}"
    delay = "" if copy.latency_s is None else f" {copy.latency_s * 1e6:.0f} µs"
    return f"{way}{rate}{delay} {'right' if copy.right else 'WRONG'}"


def good_peers(machine: Machine) -> Text | None:
    """How the cards reach each other, for a reader whose links are well."""
    linked = sum(pair.path == "NVLINK" for pair in machine.gpu_links)
    direct = sum(bool(pair.peer_access) for pair in machine.gpu_links)
    if not linked and not direct:
        return None
    every = len(machine.gpu_links)
    known = any(pair.peer_access is not None for pair in machine.gpu_links)
    peers, peers_zh = "", ""
    if known:
        peers, peers_zh = f", {direct} with direct access", f"，{direct} 对可直接访问"
    return Text(
        f"Between cards: {linked} of {every} pairs by NVLink{peers}.",
        f"卡间连接：{every} 对中 {linked} 对为 NVLink{peers_zh}。",
    )
