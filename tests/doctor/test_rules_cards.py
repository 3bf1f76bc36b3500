"""Cards, their links and the kernel's lines about them: each rule, and a near miss."""

from dataclasses import replace

import pytest
from ailing import (
    BARE_METAL,
    CARD_ADDRESS,
    REMAPS,
    assert_finds_just,
    card,
    found,
    pair,
    server,
    with_card,
    with_cards,
    with_events,
    xid,
)

from workhorse.doctor.judge import judge
from workhorse.records import (
    CopyBandwidth,
    EccCounts,
    GpuProcess,
    GpuTrouble,
    KernelEvent,
    Limits,
    Machine,
    PeerCopy,
    RetiredPages,
)
from workhorse.units import GIB, MIB

TRANSLATING = replace(BARE_METAL, iommu="translating")
REDIRECTING = replace(BARE_METAL, acs_redirect=True)


def two(path: str, *, peer: bool | None = True, **facts: object) -> Machine:
    return with_cards(card(0), card(1), gpu_links=(pair(path, peer=peer),), **facts)


def tried(copy: PeerCopy) -> Machine:
    link = replace(pair("SYS", peer=True), copies=(copy,))
    return with_cards(card(0), card(1), gpu_links=(link,))


def bus_line(address: str, times: int = 1) -> KernelEvent:
    return KernelEvent("pcie", None, address, f"{address}: AER: Corrected error", times)


def copies(link_bytes_per_s: float, card_bytes_per_s: float) -> tuple[CopyBandwidth, ...]:
    return (
        CopyBandwidth("device", card_bytes_per_s, "test", 1.0),
        CopyBandwidth("to device", link_bytes_per_s, "test", 1.0),
    )


RULES: list[tuple[str, Machine, Machine]] = [
    ("link.width-lost",
     with_card(pcie_width_now=8),
     with_card(pcie_width_now=8, pcie_width_port=8)),  # the board's limit
    ("link.width-below-card",
     with_card(pcie_width_now=8, pcie_width_port=None),
     with_card(pcie_width_now=16, pcie_width_port=None)),
    ("link.slot-narrower",
     with_card(pcie_width_now=8, pcie_width_port=8),
     with_card(pcie_generation_now=1)),
    ("link.speed-lost",
     with_card(pcie_generation_now=1, pcie_generation_loaded=1),
     with_card(pcie_generation_now=1, pcie_generation_loaded=3)),
    ("link.speed-idle", with_card(pcie_generation_now=1), with_card()),
    ("link.slow",
     with_card(pcie_width_now=1, pcie_width_port=1),
     with_card(pcie_width_now=4, pcie_width_port=4)),
    ("link.copies-slow",
     with_card(pcie_generation_loaded=3, pcie_width_loaded=16, copies=copies(5e9, 6e9)),
     with_card(pcie_generation_loaded=3, pcie_width_loaded=8, copies=copies(5e9, 6e9))),
    ("link.replays", with_card(pcie_replays=5000), with_card(pcie_replays=3)),
    ("link.bus-errors",
     with_events(bus_line("0000:17:01.0")), with_events(bus_line(CARD_ADDRESS))),
    ("link.far-node",
     server(gpus=(card(numa_node=1),), limits=Limits(tuple(range(14)), None, None, None)),
     server(gpus=(card(numa_node=0),), limits=Limits(tuple(range(14)), None, None, None))),
    ("link.cards-apart",
     with_cards(card(0), card(1, numa_node=1)), with_cards(card(0), card(1))),
    ("link.peer-wrong", tried(PeerCopy(True, False)), tried(PeerCopy(True, True, 9e9, 2e-6))),
    ("link.peer-hangs",
     tried(PeerCopy(False, None, failure="hangs")),
     tried(PeerCopy(True, None, failure="cuInit: CUDA_ERROR_UNKNOWN"))),
    ("link.no-peer", two("SYS", peer=False), two("SYS", peer=True)),
    ("link.no-nvlink",
     with_cards(*(card(i, name="Tesla V100-SXM2-16GB") for i in (0, 1)), gpu_links=(pair("SYS"),)),
     with_cards(*(card(i, name="Tesla V100-SXM2-16GB") for i in (0, 1)),
                gpu_links=(pair("NVLINK", nvlinks=2),))),
    ("link.iommu-translates",
     two("PHB", system=TRANSLATING), two("NVLINK", system=TRANSLATING)),
    ("link.acs-redirects", two("PIX", system=REDIRECTING), two("SYS", system=REDIRECTING)),
    ("gpu.power-limit", with_card(power_limit_w=150.0), with_card(power_limit_w=249.5)),
    ("gpu.too-hot",
     with_card(throttle_reasons=("SW thermal slowdown",), temperature_c=88),
     with_card(throttle_reasons=("SW power cap",), temperature_c=60)),
    ("gpu.no-air-flow", with_card(temperature_c=72), with_card(temperature_c=45)),
    ("gpu.power-brake",
     with_card(throttle_reasons=("HW slowdown", "HW power brake slowdown"), busy_percent=99),
     with_card(throttle_reasons=("SW power cap", "sync boost"), busy_percent=99)),
    ("gpu.hw-slowdown",
     with_card(throttle_reasons=("HW slowdown",), busy_percent=99),
     with_card(throttle_reasons=("applications clocks setting",), busy_percent=99)),
    ("gpu.clocks-low",
     with_card(busy_percent=97, sm_clock_now_mhz=405, throttle_reasons=()),
     with_card(busy_percent=0, sm_clock_now_mhz=405)),
    ("gpu.memory-clock-low",
     with_card(busy_percent=97, sm_clock_now_mhz=1380, memory_clock_now_mhz=405),
     with_card(busy_percent=97, sm_clock_now_mhz=1380, memory_clock_now_mhz=800)),
    ("gpu.memory-slow",
     with_card(copies=copies(12e9, 200e9)), with_card(copies=copies(12e9, 370e9))),
    ("gpu.ecc-off", with_card(ecc_enabled=False), with_card(ecc_enabled=None)),
    ("gpu.ecc-costs",
     with_card(memory_bus_bits=256), with_card(memory_bus_bits=256, ecc_enabled=False)),
    ("gpu.memory-errors",
     with_card(ecc=EccCounts(0, 2, 0, 2)), with_card(ecc=EccCounts(5, 0, 9, 0))),
    ("gpu.memory-worn",
     with_card(retired_pages=RetiredPages(40, 10, False)),
     with_card(retired_pages=RetiredPages(2, 1, False))),
    ("gpu.restart-pending",
     with_card(retired_pages=RetiredPages(0, 1, True)),
     with_card(retired_pages=RetiredPages(0, 1, False))),
    ("gpu.errors-past",
     with_card(retired_pages=RetiredPages(1, 0, False)),
     with_card(retired_pages=RetiredPages(0, 0, False), row_remaps=REMAPS)),
    ("gpu.memory-taken",
     with_card(processes=(GpuProcess(77, "python3", 6 * GIB),)),
     with_card(processes=(GpuProcess(77, "Xorg", 120 * MIB),))),
    ("gpu.prohibited", with_card(compute_mode="prohibited"), with_card(compute_mode="default")),
    ("gpu.exclusive",
     with_card(compute_mode="exclusive process"), with_card(compute_mode=None)),
    ("gpu.mig", with_card(mig=True), with_card(mig=False)),
    ("gpu.persistence-off", with_card(persistence=False), with_card(persistence=None)),
    ("gpu.small-window",
     with_cards(card(0, bar1_bytes=256 * MIB), card(1)),
     with_card(bar1_bytes=256 * MIB)),  # alone: no other card to reach
    ("xid.79", with_events(xid(79)), with_events(xid(45))),
    ("xid.13", with_events(xid(13)), with_events(xid(13), xid(79))),
    ("xid.74", with_events(xid(74)), with_events(xid(13))),
    ("xid.119", with_events(xid(119)), with_events()),
    ("xid.45", with_events(xid(45)), with_events(xid(31), xid(45))),
    ("xid.unknown", with_events(xid(4711)), with_events(xid(62))),
    ("nvrm.bus",
     with_events(KernelEvent("nvrm", None, CARD_ADDRESS, "NVRM: BAR1 is 0M @ 0x0")),
     with_events(KernelEvent("nvrm", None, CARD_ADDRESS, "NVRM: something else"))),
    ("nvrm.driver",
     with_events(KernelEvent("nvrm", None, None, "NVRM: API mismatch: the client has")),
     with_events(KernelEvent("nvrm", None, None, "NVRM: API call"))),
]  # fmt: skip


@pytest.mark.parametrize(("code", "ill", "near_miss"), RULES, ids=[rule[0] for rule in RULES])
def test_a_rule_finds_what_it_is_for_and_nothing_close(
    code: str, ill: Machine, near_miss: Machine
) -> None:
    assert_finds_just(code, ill, near_miss)


def not_well(machine: Machine) -> set[str]:
    """The codes of what the doctor says of the machine's health; what suits the card is not it."""
    told = judge(machine).findings
    return {f.code for f in told if f.level != "good" and not f.code.startswith(("card.", "llama"))}


def test_a_healthy_card_gets_no_warning() -> None:
    assert not_well(with_card()) == set()
    assert not [f for f in judge(with_card()).findings if f.level in ("warning", "blocker")]


def test_eight_equal_cards_with_one_trouble_are_one_finding() -> None:
    cards = [card(index, power_limit_w=150.0) for index in range(8)]
    told = [f for f in judge(with_cards(*cards)).findings if f.code == "gpu.power-limit"]
    assert len(told) == 1 and "0, 1, 2, 3, 4, 5, 6, 7" in told[0].seen.en


def test_cards_that_one_program_fills_are_one_finding() -> None:
    program = GpuProcess(77, "llama-server", 12 * GIB)
    cards = [card(index, processes=(program,)) for index in range(4)]
    told = [f for f in judge(with_cards(*cards)).findings if f.code == "gpu.memory-taken"]
    assert len(told) == 1 and "GPU 3" in told[0].seen.en and "GPU 3" in told[0].seen.zh


def test_the_speed_of_an_idle_link_is_not_its_limit() -> None:
    idle = with_card(pcie_generation_now=1, pcie_generation_max=None, pcie_width_now=8,
                     pcie_width_port=8)  # fmt: skip
    assert "link.slow" not in found(idle)
    blind = with_card(pcie_generation_now=1, pcie_generation_max=None, pcie_generation_card=None)
    assert "link.slow" not in found(blind)


def test_the_drivers_maximum_speaks_for_a_slot_that_is_not_known() -> None:
    known_to_driver = with_card(pcie_width_now=8, pcie_width_max=8, pcie_width_port=None)
    assert "link.width-below-card" not in found(known_to_driver)


def test_one_corrected_bus_error_is_no_alarm() -> None:
    assert found(with_events(bus_line(CARD_ADDRESS)))["link.replays"].level == "note"
    assert found(with_events(bus_line(CARD_ADDRESS, 500)))["link.replays"].level == "warning"
    fatal = replace(bus_line(CARD_ADDRESS), text="AER: Uncorrected (Fatal) error received")
    assert found(with_events(fatal))["link.replays"].level == "warning"


def test_a_margin_is_no_temperature() -> None:
    assert "gpu.too-hot" not in found(with_card(slowdown_temperature_c=-2, temperature_c=40))
    assert "gpu.too-hot" in found(with_card(slowdown_temperature_c=90, temperature_c=86))


def test_a_lost_card_is_one_finding_with_the_drivers_words() -> None:
    trouble = GpuTrouble("lost", "GPU is lost", CARD_ADDRESS, "10de:1db4")
    machine = server(gpu_troubles=(trouble,), events=(xid(79), xid(45)))
    told = [f for f in judge(machine).findings if f.level in ("warning", "blocker")]
    assert [f.code for f in told] == ["gpu.lost"]
    assert any(": 79" in line for line in told[0].evidence)


def test_a_bad_contact_is_one_finding() -> None:
    machine = with_card(pcie_width_now=1, pcie_replays=900)
    codes = {code for code in found(machine) if code.startswith("link.")}
    assert codes == {"link.width-lost"}


def test_hardware_explains_the_programs_that_died() -> None:
    machine = with_events(xid(13, times=3), xid(31), xid(62), xid(45))
    codes = {code for code in found(machine) if code.startswith("xid.")}
    assert codes == {"xid.62"}
    assert len(found(machine)["xid.62"].evidence) == 5  # the card, and each line


def test_a_cards_memory_is_one_finding_with_its_xids() -> None:
    sick = card(ecc=EccCounts(0, 1, 0, 4), retired_pages=RetiredPages(0, 2, True))
    machine = server(gpus=(sick,), events=(xid(48), xid(63), xid(45)))
    codes = [f.code for f in judge(machine).findings if f.level == "warning"]
    assert codes == ["gpu.memory-errors"]
    evidence = " ".join(found(machine)["gpu.memory-errors"].evidence)
    assert "double_bit 2" in evidence and ": 48" in evidence and ": 63" in evidence


def test_xids_of_another_card_are_told_apart() -> None:
    machine = with_events(xid(79, "0000:af:00.0"), xid(13))
    assert {"xid.79", "xid.13"} <= found(machine).keys()


def test_the_port_of_a_virtual_machine_proves_nothing() -> None:
    guest = with_card(pcie_width_now=8, pcie_width_port=8, pcie_generation_port=1)
    guest = replace(guest, system=replace(BARE_METAL, hypervisor="kvm"))
    told = found(guest)
    assert told["link.width-below-card"].sure == "possible"
    assert "link.slot-narrower" not in told and "link.speed-lost" not in told


def test_idle_cards_say_harmless_things() -> None:
    for reasons in (("idle",), ("SW power cap",), ("display clock setting", "sync boost"), ()):
        assert not_well(with_card(throttle_reasons=reasons)) == set()
    doubtful = found(with_card(throttle_reasons=("HW slowdown",)))["gpu.hw-slowdown"]
    assert doubtful.level == "note" and doubtful.share_lost is None


def test_a_reason_that_is_not_known_claims_nothing() -> None:
    assert not_well(with_card(throttle_reasons=("0x1000",))) == set()


def test_one_closed_card_of_two_does_not_block() -> None:
    machine = with_cards(card(0, compute_mode="prohibited"), card(1))
    assert found(machine)["gpu.prohibited"].level == "warning"
    assert judge(with_card(compute_mode="prohibited")).blocked


def test_a_card_made_with_four_lanes_is_said_to_be_the_limit() -> None:
    mining = with_card(
        pcie_width_now=4, pcie_width_card=4, pcie_generation_card=1, pcie_generation_now=1,
        pcie_generation_max=1, pcie_width_max=4,
    )  # fmt: skip
    told = found(mining)
    assert "the card itself" in told["link.slow"].seen.en
    assert "16 s" in told["link.slow"].why.en or "17" in told["link.slow"].why.en
    assert "link.width-lost" not in told


SUPPORT = {
    "too new or too old": "NVRM: The NVIDIA GPU 0000:82:00.0 (PCI ID: 10de:1db6) installed in this"
    " system is not supported by the NVIDIA 590.44.01 driver release.",
    "open module": "NVRM: The NVIDIA GPU 0000:82:00.0 (PCI ID: 10de:1db6) installed in this system"
    " is not supported by open nvidia.ko because it does not include the required GPU",
    "closed module": "NVRM: The NVIDIA GPU 0000:82:00.0 (PCI ID: 10de:2b85) installed in this"
    " system requires use of the NVIDIA open kernel modules.",
    "legacy": "NVRM: The NVIDIA Tesla K80 GPU installed in this system is supported through the"
    " NVIDIA 470.xx Legacy drivers. Please visit",
    "nouveau": "NVRM: GPU 0000:82:00.0 is already bound to nouveau.",
}


@pytest.mark.parametrize("said", SUPPORT.values(), ids=SUPPORT)
def test_a_driver_that_says_it_does_not_take_the_card_blocks_where_no_other_works(
    said: str,
) -> None:
    place = "0000:82:00.0" if "0000:82" in said else None
    event = KernelEvent("nvrm", None, place, said)
    alone = found(with_cards(events=(event,)))["nvrm.support"]
    assert alone.level == "blocker" and alone.share_lost == 1.0 and said in alone.evidence
    assert found(with_cards(card(0), events=(event,)))["nvrm.support"].level == "warning"


def test_what_the_driver_said_of_a_card_that_it_drives_now_is_past() -> None:
    said = SUPPORT["too new or too old"].replace("0000:82:00.0", CARD_ADDRESS)
    assert "nvrm.support" not in found(with_events(KernelEvent("nvrm", None, CARD_ADDRESS, said)))


def test_the_card_that_the_kernel_names_decides_which_driver_it_needs() -> None:
    event = KernelEvent("nvrm", None, "0000:82:00.0", SUPPORT["too new or too old"])
    remedy = found(with_cards(events=(event,)))["nvrm.support"].remedy
    assert "Volta is 580" in remedy.en and "580" in remedy.zh


def test_what_failed_to_start_for_want_of_the_driver_is_told_with_it() -> None:
    place = "0000:82:00.0"
    events = (
        KernelEvent("nvrm", None, place, SUPPORT["closed module"]),
        KernelEvent("nvrm", None, place, f"NVRM: GPU {place}: RmInitAdapter failed! (0x22:0x56)"),
        KernelEvent("nvrm", None, None, "NVRM: None of the NVIDIA devices were initialized."),
    )
    told = found(with_cards(events=events))
    assert not {"nvrm.hardware", "nvrm.consequence"} & set(told)
    assert len(told["nvrm.support"].consequences) == 2


def test_nothing_is_said_to_be_well_of_a_card_that_tells_no_reasons() -> None:
    assert "good.cards" in found(with_card())
    assert "good.cards" not in found(with_card(throttle_reasons=None))
    one_tells = with_cards(card(0), card(1, throttle_reasons=None))
    assert "GPU 0 (" in found(one_tells)["good.cards"].seen.en


def test_a_slow_link_is_no_faster_than_its_port() -> None:
    riser = with_card(pcie_width_now=1, pcie_width_port=1, pcie_generation_port=2,
                      pcie_generation_max=3, pcie_generation_now=2)  # fmt: skip
    slow = found(riser)["link.slow"]
    assert "PCIe 2.0 x1" in slow.seen.en and "0.5" in slow.seen.en


def test_a_remedy_is_for_every_card_that_is_ill() -> None:
    capped = [card(index, power_limit_w=150.0) for index in (0, 1, 5)]
    told = found(with_cards(*capped, card(7)))["gpu.power-limit"].command or ""
    assert told.startswith("for i in 0 1 5; do ") and "-i $i " in told and told.endswith("; done")
    alone = found(with_cards(card(0), card(3, power_limit_w=150.0)))["gpu.power-limit"].command
    assert alone is not None and "-i 3 " in alone and "for " not in alone


def test_cards_with_findings_of_their_own_keep_all_commands() -> None:
    slow = {"busy_percent": 100, "sm_clock_now_mhz": 135, "sm_clock_max_mhz": 1380}
    told = found(with_cards(card(0, **slow), card(1, **slow)))["gpu.clocks-low"].command or ""
    assert "-i 0 " in told and "-i 1 " in told


def test_a_card_whose_memory_is_hot_is_told_by_its_memory() -> None:
    hot = found(with_card(temperature_c=70, memory_temperature_c=97))["gpu.too-hot"].seen
    assert "memory 97 °C" in hot.en and "显存 97 °C" in hot.zh and "70" not in hot.en
    core = found(with_card(temperature_c=86, slowdown_temperature_c=87))["gpu.too-hot"].seen
    assert "at 86 °C" in core.en
