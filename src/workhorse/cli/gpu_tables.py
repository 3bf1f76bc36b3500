"""Tables of the GPUs, of what joins them, and of what runs on them."""

from collections.abc import Callable, Iterator, Sequence

from workhorse.cli.probe_tables import FACT, Rows, print_facts, print_known, show_count, show_switch
from workhorse.cli.show import console, print_table
from workhorse.records import Gpu, Machine
from workhorse.text import Language, Text, same
from workhorse.units import UNKNOWN, show_bandwidth, show_bytes

# More cards than this side by side need more columns than a terminal has.
_SIDE_BY_SIDE_MAX = 3
_COLUMNS_MAX = 6
Row = tuple[Text, list[str]]
NO_GPUS = Text("none found", "未发现")
NONE_USABLE = Text("none usable: see below", "没有可用的：见下文")
NOTHING = Text("nothing", "无")
GPU = same("GPU")
DIRECT, STAGED = Text("direct", "直接"), Text("through main memory", "经内存")
ARRIVES = {
    True: Text("right", "正确"),
    False: Text("WRONG", "错误"),
    None: Text("not known", "未知"),
}


def print_gpus(machine: Machine, language: Language) -> None:
    """All facts of each GPU: side by side where they fit, else what is alike told once."""
    driver = machine.driver
    named = ""
    if driver is not None and (driver.version or driver.cuda):
        named = f"{driver.version or UNKNOWN}, CUDA {driver.cuda or UNKNOWN}"
    if not machine.gpus:
        none: Rows = [
            (Text("NVIDIA GPUs", "NVIDIA GPU"), NONE_USABLE if machine.gpu_troubles else NO_GPUS)
        ]
        none += [(Text("driver", "驱动"), named)] if named else []
        print_facts(Text("GPUs", "GPU"), none, language)
        return
    title = Text("GPUs", "GPU")
    if named:
        title = Text(f"GPUs (driver {named})", f"GPU（驱动 {named}）")
    rows = [(label, [tell(gpu, language) for gpu in machine.gpus]) for label, tell in FACTS]
    if len(machine.gpus) <= _SIDE_BY_SIDE_MAX:
        print_known(
            title,
            (FACT[0], *(same(f"GPU {gpu.index}") for gpu in machine.gpus)),
            ((label.in_language(language), values) for label, values in rows),
            language,
        )
        return
    alike = [(label, values[:1]) for label, values in rows if len(set(values)) == 1]
    print_known(
        title,
        (FACT[0], Text(f"all {len(machine.gpus)} GPUs", f"全部 {len(machine.gpus)} 块 GPU")),
        ((label.in_language(language), values) for label, values in alike),
        language,
    )
    different = [(label, values) for label, values in rows if len(set(values)) > 1]
    for columns in batched(different, _COLUMNS_MAX):
        print_table(
            Text("What differs between the GPUs", "各 GPU 的不同之处"),
            (GPU, *(label for label, _ in columns)),
            (
                (str(gpu.index), *(values[position] for _, values in columns))
                for position, gpu in enumerate(machine.gpus)
            ),
            language,
        )


def batched(rows: Sequence[Row], count: int) -> Iterator[Sequence[Row]]:
    """The rows, `count` at a time."""
    for start in range(0, len(rows), count):
        yield rows[start : start + count]


def print_links(machine: Machine, language: Language) -> None:
    """How the GPUs reach each other, as a square."""
    if not machine.gpu_links:
        return
    indexes = [gpu.index for gpu in machine.gpus]
    ways = {}
    for link in machine.gpu_links:
        way = f"NV{link.nvlinks or ''}" if link.path == "NVLINK" else link.path
        if link.peer_access is False:
            way += f" ({link.peer_trouble or '!'})"
        ways[link.first, link.second] = ways[link.second, link.first] = way
    print_table(
        Text("Links between GPUs", "GPU 之间的连接"),
        (GPU, *(same(str(index)) for index in indexes)),
        (
            (
                str(one),
                *("·" if one == other else ways.get((one, other), UNKNOWN) for other in indexes),
            )
            for one in indexes
        ),
        language,
    )
    legend = Text(
        "NV2: two NVLinks; PIX, PXB: switches; PHB: one root; NODE, SYS: through the CPUs; in"
        " brackets: no direct access, and the driver's word for why",
        "NV2：两条 NVLink；PIX、PXB：经交换芯片；PHB：同一根桥；NODE、SYS：经 CPU；"
        "括号内：不能直接互访，及驱动给出的原因",
    )
    console().print(f"  {legend.in_language(language)}", style="dim", markup=False)


def print_peer_copies(machine: Machine, language: Language) -> None:
    """What was tried of copies between GPUs: how fast, and whether they arrive."""
    rows = [
        (
            f"{link.first}–{link.second}",
            (DIRECT if copy.direct else STAGED).in_language(language),
            UNKNOWN if copy.bytes_per_s is None else show_bandwidth(copy.bytes_per_s),
            UNKNOWN if copy.latency_s is None else f"{copy.latency_s * 1e6:.0f} µs",
            ARRIVES[copy.right].in_language(language) if copy.failure is None else copy.failure,
        )
        for link in machine.gpu_links
        for copy in link.copies
    ]
    if rows:
        print_table(
            Text("Copies between GPUs", "GPU 之间的拷贝"),
            (
                Text("GPUs", "GPU"),
                Text("way", "方式"),
                Text("speed", "速度"),
                Text("4 KiB take", "4 KiB 用时"),
                Text("arrives", "数据"),
            ),
            rows,
            language,
        )


def print_gpu_processes(machine: Machine, language: Language) -> None:
    """Who holds memory of the GPUs."""
    rows = [
        (
            str(gpu.index),
            str(process.pid),
            process.name or UNKNOWN,
            show_bytes(process.memory_bytes),
        )
        for gpu in machine.gpus
        for process in gpu.processes or ()
    ]
    if rows:
        print_table(
            Text("Processes on the GPUs", "GPU 上的进程"),
            (GPU, Text("process", "进程号"), Text("program", "程序"), Text("memory", "显存")),
            rows,
            language,
        )


def show_link(generation: int | None, width: int | None) -> str:
    """A PCIe link such as `3.0 x16`."""
    return f"{UNKNOWN if generation is None else f'{generation}.0'} x{show_count(width)}"


def show_watts(watts: float | None) -> str:
    """A power such as `250 W`; `—` when unknown."""
    return UNKNOWN if watts is None else f"{watts:.0f} W"


def show_celsius(celsius: int | None) -> str:
    """A temperature such as `31 °C`; `—` when unknown."""
    return UNKNOWN if celsius is None else f"{celsius} °C"


def show_mhz(now: int | None, most: int | None) -> str:
    """A clock now and at most such as `135 / 1380 MHz`."""
    return f"{show_count(now)} / {show_count(most)} MHz"


def _capability(gpu: Gpu, _: Language) -> str:
    return "{}.{}".format(*gpu.compute_capability) if gpu.compute_capability else UNKNOWN


def _memory(gpu: Gpu, _: Language) -> str:
    return f"{show_bytes(gpu.memory_free_bytes)} / {show_bytes(gpu.memory_total_bytes)}"


def _copies(gpu: Gpu, language: Language) -> str:
    names = {
        "device": Text("within", "卡内"),
        "to device": Text("to it", "传入"),
        "from device": Text("from it", "传出"),
    }
    told = [
        f"{names[copy.kind].in_language(language)} {show_bandwidth(copy.bytes_per_s)}"
        for copy in gpu.copies
    ]
    return ", ".join(told) or UNKNOWN


def _link_loaded(gpu: Gpu, _: Language) -> str:
    if gpu.pcie_generation_loaded is None and gpu.pcie_width_loaded is None:
        return UNKNOWN
    return show_link(gpu.pcie_generation_loaded, gpu.pcie_width_loaded)


def _temperature(gpu: Gpu, _: Language) -> str:
    return f"{show_celsius(gpu.temperature_c)} / {show_celsius(gpu.memory_temperature_c)}"


def _throttled(gpu: Gpu, language: Language) -> str:
    reasons = gpu.throttle_reasons
    return UNKNOWN if reasons is None else ", ".join(reasons) or NOTHING.in_language(language)


def _errors(gpu: Gpu, _: Language) -> str:
    counts = gpu.ecc
    if counts is None:
        return UNKNOWN
    now = f"{show_count(counts.corrected)} / {show_count(counts.uncorrected)}"
    life = f"{show_count(counts.corrected_lifetime)} / {show_count(counts.uncorrected_lifetime)}"
    return f"{now} ({life})"


def _replaced(gpu: Gpu, language: Language) -> str:
    """Retired pages of older cards, remapped rows of newer ones."""
    pages, rows = gpu.retired_pages, gpu.row_remaps
    parts: list[Text] = []
    if pages is not None:
        counts = f"{show_count(pages.single_bit)} + {show_count(pages.double_bit)}"
        parts.append(Text(f"{counts} pages", f"{counts} 页"))
    if rows is not None:
        counts = f"{show_count(rows.correctable)} + {show_count(rows.uncorrectable)}"
        parts.append(Text(f"{counts} rows", f"{counts} 行"))
    if (pages and pages.pending) or (rows and rows.pending):
        parts.append(Text("more at the next restart", "重启后还会增加"))
    if rows and rows.failed:
        parts.append(Text("no spare row left", "备用行已用尽"))
    return ", ".join(part.in_language(language) for part in parts) or UNKNOWN


def _power(gpu: Gpu, _: Language) -> str:
    watts = (gpu.power_draw_w, gpu.power_limit_w, gpu.power_limit_default_w)
    return " / ".join(map(show_watts, watts))


def _fan(gpu: Gpu, _: Language) -> str:
    return UNKNOWN if gpu.fan_percent is None else f"{gpu.fan_percent} %"


def _busy(gpu: Gpu, _: Language) -> str:
    state = UNKNOWN if gpu.performance_state is None else f"P{gpu.performance_state}"
    return f"{state}, {show_count(gpu.busy_percent)} %"


Fact = tuple[Text, Callable[[Gpu, Language], str]]
FACTS: Sequence[Fact] = (
    (Text("name", "型号"), lambda gpu, _: gpu.name),
    (Text("compute capability", "计算能力"), _capability),
    (Text("memory, free / total", "显存，空闲 / 总量"), _memory),
    (
        Text("rated bandwidth (clock × bus)", "额定带宽（频率 × 位宽）"),
        lambda gpu, _: show_bandwidth(gpu.rated_bandwidth_bytes_per_s),
    ),
    (Text("measured copies", "实测拷贝"), _copies),
    (Text("PCI address", "PCI 地址"), lambda gpu, _: gpu.pci_address or UNKNOWN),
    (Text("NUMA node", "NUMA 节点"), lambda gpu, _: show_count(gpu.numa_node)),
    (
        Text("PCIe now", "PCIe 当前"),
        lambda gpu, _: show_link(gpu.pcie_generation_now, gpu.pcie_width_now),
    ),
    (Text("PCIe under load", "PCIe 负载时"), _link_loaded),
    (
        Text("PCIe at most", "PCIe 最高"),
        lambda gpu, _: show_link(gpu.pcie_generation_max, gpu.pcie_width_max),
    ),
    (
        Text("PCIe of the card", "显卡支持的 PCIe"),
        lambda gpu, _: show_link(gpu.pcie_generation_card, gpu.pcie_width_card),
    ),
    (
        Text("PCIe of the port above", "上级端口的 PCIe"),
        lambda gpu, _: show_link(gpu.pcie_generation_port, gpu.pcie_width_port),
    ),
    (Text("packets sent again", "重传次数"), lambda gpu, _: show_count(gpu.pcie_replays)),
    (Text("BAR1", "BAR1"), lambda gpu, _: show_bytes(gpu.bar1_bytes)),
    (Text("temperature, GPU / memory", "温度，GPU / 显存"), _temperature),
    (
        Text("slows down at", "降频温度"),
        lambda gpu, _: show_celsius(gpu.slowdown_temperature_c),
    ),
    (Text("fan", "风扇"), _fan),
    (Text("throttled by", "降频原因"), _throttled),
    (Text("ECC", "ECC"), lambda gpu, language: show_switch(gpu.ecc_enabled, language)),
    (
        Text("errors, corrected / not (lifetime)", "错误，已纠正 / 未纠正（累计）"),
        _errors,
    ),
    (Text("replaced memory", "已替换的显存"), _replaced),
    (
        Text("SM clock, now / most", "SM 频率，当前 / 最高"),
        lambda gpu, _: show_mhz(gpu.sm_clock_now_mhz, gpu.sm_clock_max_mhz),
    ),
    (
        Text("memory clock, now / most", "显存频率，当前 / 最高"),
        lambda gpu, _: show_mhz(gpu.memory_clock_now_mhz, gpu.memory_clock_max_mhz),
    ),
    (Text("power, draw / limit / default", "功耗，当前 / 上限 / 默认"), _power),
    (Text("state, busy", "状态，占用率"), _busy),
    (
        Text("persistence mode", "持久模式"),
        lambda gpu, language: show_switch(gpu.persistence, language),
    ),
    (Text("compute mode", "计算模式"), lambda gpu, _: gpu.compute_mode or UNKNOWN),
    (Text("MIG", "MIG"), lambda gpu, language: show_switch(gpu.mig, language)),
)
