"""Memory, processor, kernel and room: for each rule a machine that has it and a near miss."""

from dataclasses import replace

import pytest
from ailing import (
    BARE_METAL,
    assert_finds_just,
    card,
    dimms,
    found,
    server,
    with_memory,
    with_settings,
)

from workhorse.doctor.judge import judge
from workhorse.records import (
    Bandwidth,
    Dimm,
    Disk,
    EngineFound,
    GpuTrouble,
    KernelEvent,
    Limits,
    Machine,
    Software,
)
from workhorse.units import GB, GIB


def rated(slow: int, fast: int, runs_at: int) -> tuple[Dimm, ...]:
    """Modules of two rates, all running at one."""
    modules = dimms(configured_mt_s=runs_at, rated_mt_s=fast)
    return (replace(modules[0], rated_mt_s=slow), *modules[1:])


def nodes(first_bytes: int, second_bytes: int) -> Machine:
    base = server()
    one, two = base.nodes
    return replace(
        base,
        nodes=(
            replace(one, memory_total_bytes=first_bytes),
            replace(two, memory_total_bytes=second_bytes),
        ),
    )


def limits(cpus: int = 56, **facts: object) -> Machine:
    values = {"quota_cpus": None, "memory_bytes": None, "memory_used_bytes": None} | facts
    return server(limits=Limits(tuple(range(cpus)), **values))  # type: ignore[arg-type]


def flags(*names: str, **facts: object) -> Machine:
    base = server(**facts)
    return replace(base, cpu=replace(base.cpu, flags=tuple(sorted(names))))


def disk(**facts: object) -> Machine:
    base = Disk("/models", "ext4", 1000 * GB, 500 * GB, "ssd", 500e6, "test")
    return server(disks=(replace(base, **facts),))  # type: ignore[arg-type]


def read(bytes_per_s: float, node: int | None = None, of: int | None = None) -> Bandwidth:
    memory = None if of is None else (of,)
    return Bandwidth(bytes_per_s, "huge", 28, node, "test", 1.0, memory)


def event(kind: str, times: int = 1) -> KernelEvent:
    return KernelEvent(kind, None, None, f"a line about {kind}", times)  # type: ignore[arg-type]


RULES: list[tuple[str, Machine, Machine]] = [
    ("memory.channels-empty",
     with_memory(dimms=dimms(filled=2), channels_in_use=(2, 2)),
     with_memory(channels_in_use=(4, 4))),
    ("memory.sockets-unequal",
     with_memory(dimms=(*dimms(sockets=1, size=32 * GIB), *dimms(sockets=2)[4:])),
     with_memory(dimms=dimms(size=32 * GIB))),
    ("memory.slow-rate",
     with_memory(dimms=dimms(configured_mt_s=1866)),
     # The CPU takes 2400 at most: faster modules lose nothing that it could use.
     with_memory(dimms=dimms(rated_mt_s=2666, configured_mt_s=2400))),
    ("memory.mixed-rates",
     with_memory(dimms=rated(2133, 2400, 2133)),
     with_memory(dimms=rated(2400, 2666, 2400))),
    ("memory.mixed-sizes",
     with_memory(dimms=tuple(replace(d, size_bytes=8 * GIB) if d.channel == 1 else d
                             for d in dimms())),
     with_memory(dimms=dimms(a_channel=2))),
    ("memory.slower-than-rated",
     with_memory(bandwidths=(read(30e9, 0), read(30e9, 1))),
     # Interleaved over the sockets all reads are slow: that is the link between them.
     with_memory(bandwidths=(read(60e9, 0), read(58e9, 1), read(50e9, None, 0)))),
    ("memory.cross-node",
     with_memory(bandwidths=(read(60e9, 0), read(25e9, 0, 1))),
     with_memory(bandwidths=(read(60e9, 0), read(55e9, 1)))),
    ("memory.node-empty", nodes(128 * GIB, 0), nodes(64 * GIB, 64 * GIB)),
    ("memory.node-without-cpus",
     replace(server(), nodes=(server().nodes[0], replace(server().nodes[1], cpus=()))),
     nodes(128 * GIB, 0)),
    ("memory.errors-uncorrected", with_memory(ecc_uncorrected=1), with_memory(ecc_corrected=1)),
    ("memory.errors-corrected",
     server(events=(event("memory"),)), server(events=(event("out of memory"),))),
    ("memory.small", with_memory(total_bytes=4 * GIB), with_memory(total_bytes=16 * GIB)),
    ("memory.taken",
     with_memory(available_bytes=6 * GIB), with_memory(available_bytes=64 * GIB)),
    ("memory.swap-used",
     with_memory(swap_total_bytes=8 * GIB, swap_free_bytes=2 * GIB),
     with_memory(swap_total_bytes=8 * GIB, swap_free_bytes=8 * GIB - 2**20)),
    ("memory.swappiness",
     replace(with_settings(swappiness=60),
             memory=replace(server().memory, swap_total_bytes=GIB, swap_free_bytes=GIB)),
     with_settings(swappiness=60)),  # no swap: nothing to be moved to
    ("cpu.no-avx2", flags("sse4_2", "avx", "f16c"), flags("sse4_2", "avx", "f16c", "avx2")),
    ("cpu.avx2-hidden",
     flags("sse4_2", "hypervisor", system=replace(BARE_METAL, hypervisor="kvm")),
     flags("sse4_2", "avx")),
    ("system.busy", server(busy_cpus=20.0), server(busy_cpus=1.5)),
    ("kernel.numa-balancing",
     with_settings(numa_balancing=True),
     replace(with_settings(numa_balancing=True), nodes=server().nodes[:1])),
    ("kernel.zone-reclaim", with_settings(zone_reclaim=1), with_settings(zone_reclaim=0)),
    ("kernel.overcommit-strict", with_settings(overcommit=2), with_settings(overcommit=1)),
    ("kernel.governor-slow",
     with_settings(governors=("ondemand",), governors_available=("ondemand", "performance")),
     with_settings(governors=("performance",))),
    ("kernel.governor-saves",
     with_settings(governors=("powersave",)),  # beside `performance` alone: intel_pstate
     with_settings(governors=("performance",))),
    ("kernel.thp-never", with_memory(thp="never"), with_memory(thp="madvise")),
    ("kernel.thp-unasked",
     server(system=replace(BARE_METAL, glibc="2.28")),
     server(system=replace(BARE_METAL, glibc="2.35"))),
    ("kernel.huge-pages-idle",
     with_memory(huge_pages_free=16384), with_memory(huge_pages_free=16)),
    ("kernel.huge-pages-overcommit",
     with_settings(huge_pages_overcommit=100_000), with_settings(huge_pages_overcommit=64)),
    ("kernel.memlock-small",
     with_memory(memlock_bytes=65536, swap_total_bytes=GIB, swap_free_bytes=GIB),
     with_memory(memlock_bytes=65536)),  # without swap weights need no lock
    ("system.no-libgomp",
     server(system=replace(BARE_METAL, libgomp=False)),
     server(system=replace(BARE_METAL, libgomp=None))),
    ("limits.quota", limits(quota_cpus=4.0), limits(quota_cpus=None)),
    ("limits.cpus", limits(cpus=14), limits(cpus=56)),
    ("limits.memory",
     limits(memory_bytes=32 * GIB, memory_used_bytes=0),
     limits(memory_bytes=4 * GIB, memory_used_bytes=0)),  # told as too little
    ("kernel.killed",
     server(events=(event("out of memory"),)), server(events=(event("memory"),))),
    ("disk.full", disk(free_bytes=5 * GB), disk(free_bytes=50 * GB)),
    ("disk.slow", disk(read_bytes_per_s=120e6), disk(read_bytes_per_s=None)),
    ("disk.in-memory", disk(kind="memory"), disk(kind="nvme")),
    ("disk.goes-away", disk(file_system="overlay"), disk(file_system="xfs")),
]  # fmt: skip


@pytest.mark.parametrize(("code", "ill", "near_miss"), RULES, ids=[rule[0] for rule in RULES])
def test_a_rule_finds_what_it_is_for_and_nothing_close(
    code: str, ill: Machine, near_miss: Machine
) -> None:
    assert_finds_just(code, ill, near_miss)


def test_a_healthy_server_gets_no_warning() -> None:
    verdict = judge(server())
    assert {f.level for f in verdict.findings} == {"good"}


def test_half_the_channels_cost_half_of_what_the_cpu_decodes() -> None:
    machine = with_memory(dimms=dimms(filled=2), channels_in_use=(2, 2))
    finding = found(machine)["memory.channels-empty"]
    assert finding.share_lost == 0.5 and "2 of 4" in finding.seen.en
    assert any("8 slots empty" in line or "empty" in line for line in finding.evidence)


def test_memory_rules_keep_silent_in_a_virtual_machine() -> None:
    machine = with_memory(dimms=dimms(filled=1), channels_in_use=(1, 1), bandwidths=(read(9e9, 0),))
    machine = replace(machine, system=replace(BARE_METAL, hypervisor="kvm"))
    told = found(machine)
    assert not {"memory.channels-empty", "memory.slower-than-rated"} & told.keys()
    assert "virtual machine" in told["unchecked.memory"].seen.en


def test_not_knowing_the_cpus_limit_a_slow_rate_is_only_possible() -> None:
    machine = with_memory(dimms=dimms(rated_mt_s=3200, configured_mt_s=2400))
    machine = replace(machine, cpu=replace(machine.cpu, memory_rate_max_mt_s=None))
    finding = found(machine)["memory.slow-rate"]
    assert finding.level == "note" and finding.sure == "possible" and finding.share_lost is None


def test_a_line_about_lost_data_is_not_told_as_corrected() -> None:
    line = KernelEvent("memory", None, None, "EDAC MC0: 1 UE memory read error on CPU_SrcID#0")
    told = found(server(events=(line,)))
    assert told["memory.errors-uncorrected"].evidence[-1] == line.text
    assert "memory.errors-corrected" not in told
    corrected = replace(line, text="EDAC MC0: 1 CE memory read error on CPU_SrcID#0")
    assert found(server(events=(corrected,)))["memory.errors-corrected"].level == "note"
    flood = found(server(events=(replace(corrected, times=500),)))
    assert flood["memory.errors-corrected"].level == "warning"


def test_half_the_rate_may_be_the_clock_of_the_same_rate() -> None:
    finding = found(with_memory(dimms=dimms(configured_mt_s=1200)))["memory.slow-rate"]
    assert finding.level == "note" and finding.share_lost is None


def test_a_path_in_a_command_is_quoted() -> None:
    command = found(disk(path="/my models", free_bytes=GB))["disk.full"].command
    assert command == "df -h '/my models'"


def test_a_part_of_the_cpus_cannot_judge_the_memory() -> None:
    slow = with_memory(bandwidths=(read(15e9, 0), read(15e9, 1)))
    assert "memory.slower-than-rated" in found(slow)
    assert "memory.slower-than-rated" not in found(
        replace(slow, limits=replace(slow.limits, cpus=(0, 1)))
    )
    busy = found(replace(slow, busy_cpus=40.0))
    assert "system.busy" in busy and "memory.slower-than-rated" not in busy


def test_a_node_that_was_not_measured_leaves_the_machine_unjudged() -> None:
    assert "memory.slower-than-rated" not in found(with_memory(bandwidths=(read(15e9, 0),)))
    assert "unchecked.memory" not in found(server())


def test_a_machine_of_one_node_is_measured_as_a_whole() -> None:
    base = with_memory(bandwidths=(read(20e9),), rated_bandwidth_bytes_per_s=76.8e9)
    one = replace(base, nodes=base.nodes[:1])
    assert "26 %" in found(one)["memory.slower-than-rated"].seen.en


def test_an_engine_that_asks_the_cpu_runs_without_avx2() -> None:
    old = flags("sse4_2", "avx", "f16c")
    assert judge(old).blocked
    engine = EngineFound("llama.cpp", "/opt/llama.cpp", "b9000", None, None)
    warned = judge(replace(old, software=Software(engines=(engine,))))
    assert not warned.blocked and "cpu.no-avx2" in {f.code for f in warned.findings}
    assert "ivybridge" in found(old)["cpu.no-avx2"].remedy.en


def test_unknown_flags_and_other_architectures_claim_nothing_of_avx2() -> None:
    unknown = found(flags())
    assert "cpu.no-avx2" not in unknown and "unchecked.processor" in unknown
    arm = flags("asimd")
    assert "cpu.no-avx2" not in found(replace(arm, cpu=replace(arm.cpu, architecture="aarch64")))


def test_a_powersave_of_an_unknown_driver_is_only_possibly_slow() -> None:
    finding = found(with_settings(governors=("powersave",), governors_available=()))
    assert finding["kernel.governor-slow"].level == "note"
    slow = with_settings(
        governors=("powersave",), governors_available=("powersave", "ondemand", "performance")
    )
    assert found(slow)["kernel.governor-slow"].level == "warning"


def test_a_broken_card_in_the_machine_leaves_losses_of_the_cpu_open() -> None:
    """Models are to run on the card again: what the CPU loses then is not known."""
    machine = with_memory(dimms=dimms(filled=2), channels_in_use=(2, 2))
    machine = replace(machine, gpu_troubles=(GpuTrouble("not_loaded", None),))
    assert found(machine)["memory.channels-empty"].share_lost is None


def test_one_loaded_node_without_memory_is_one_finding() -> None:
    machine = replace(nodes(128 * GIB, 0), memory=with_memory(channels_in_use=(4, 0)).memory)
    codes = {code for code in found(machine) if code.startswith("memory.")}
    assert codes == {"memory.node-empty"}


def test_a_socket_without_memory_costs_its_part_of_the_bandwidth() -> None:
    assert found(replace(nodes(128 * GIB, 0), gpus=()))["memory.node-empty"].share_lost == 0.5


def unplaced(filled: int) -> Machine:
    """A board whose labels tell neither socket nor channel."""
    modules = tuple(replace(d, socket=None, channel=None) for d in dimms(filled=filled))
    return with_memory(dimms=modules, channels_in_use=None)


def test_fewer_modules_than_channels_are_empty_channels_wherever_they_are() -> None:
    finding = found(unplaced(filled=2))["memory.channels-empty"]
    assert finding.share_lost == 0.5 and "4 memory modules for 8 channels" in finding.seen.en
    assert "unchecked.memory" not in found(unplaced(filled=2))


def test_as_many_modules_as_channels_may_be_anywhere() -> None:
    told = found(unplaced(filled=4))
    assert "memory.channels-empty" not in told
    assert "labels" in told["unchecked.memory"].seen.en
    unread = unplaced(filled=2)
    modules = tuple(replace(d, size_bytes=None) for d in unread.memory.dimms or ())
    unread = replace(unread, memory=replace(unread.memory, dimms=modules))
    assert "memory.channels-empty" not in found(unread)


def test_a_socket_without_modules_is_never_praised_as_full() -> None:
    machine = with_memory(channels_in_use=(4, 0))
    good = found(machine).get("good.memory")
    assert good is None or "every channel filled" not in good.seen.en
    # One node over two sockets: the kernel cannot tell of the empty one.
    joined = replace(machine, nodes=machine.nodes[:1])
    assert found(joined)["memory.channels-empty"].share_lost == 0.5


def test_nodes_of_unknown_size_are_nodes_all_the_same() -> None:
    base = with_settings(numa_balancing=True)
    untold = tuple(replace(node, memory_total_bytes=None) for node in base.nodes)
    assert "kernel.numa-balancing" in found(replace(base, nodes=untold))
    bare = (base.nodes[0], replace(base.nodes[1], memory_total_bytes=0))
    assert "kernel.numa-balancing" not in found(replace(base, nodes=bare))


def test_a_setting_is_not_praised_and_blamed_at_once() -> None:
    never = found(replace(with_memory(thp="never"), gpus=(card(0),)))
    assert never["kernel.thp-never"].level == "note"
    assert "never" not in never["good.kernel"].seen.en
    slow = with_settings(
        governors=("powersave",), governors_available=("powersave", "ondemand", "performance")
    )
    good = found(slow).get("good.kernel")
    assert good is None or "powersave" not in good.seen.en


def test_swapped_pages_are_brought_back_only_where_there_is_room() -> None:
    swapped = {"swap_total_bytes": 64 * GIB, "swap_free_bytes": 24 * GIB}
    roomy = found(with_memory(**swapped, available_bytes=100 * GIB))["memory.swap-used"]
    assert roomy.command is not None and "swapoff" in roomy.command
    for available in (41 * GIB, 30 * GIB, None):
        short = found(with_memory(**swapped, available_bytes=available))["memory.swap-used"]
        assert short.command == "sudo sysctl vm.swappiness=10"


@pytest.mark.parametrize(
    ("distribution", "words"),
    [("Debian GNU/Linux 12 (bookworm)", "apt-get"), ("CentOS Linux 7 (Core)", "yum"),
     ("openEuler 22.03 (LTS-SP3)", "yum"), ("Rocky Linux 9.3 (Blue Onyx)", "yum"),
     (None, "apt-get")],
)  # fmt: skip
def test_a_command_is_that_of_the_distribution(distribution: str | None, words: str) -> None:
    system = replace(BARE_METAL, libgomp=False, distribution=distribution)
    assert words in (found(server(system=system))["system.no-libgomp"].command or "")
