"""nvidia-smi's texts, as printed by drivers 410 to 580, against what the same cards are."""

import re
from pathlib import Path
from typing import Any

import pytest
from captured_machines import packed
from hypothesis import given, settings
from hypothesis import strategies as st

from workhorse.codec import to_json
from workhorse.machine.files import PackedFiles, said_path
from workhorse.machine.gpu import make_gpus
from workhorse.machine.probe import read_machine
from workhorse.machine.smi_text import parse_query, parse_table, read_smi
from workhorse.records import (
    EccCounts,
    Gpu,
    GpuDriver,
    GpuProcess,
    RetiredPages,
    RowRemaps,
)
from workhorse.units import MIB

TEXTS = Path(__file__).parent / "texts"
TABLE = said_path("nvidia-smi")
QUERY = said_path("nvidia-smi", "-q")


def text(name: str) -> str:
    return (TEXTS / f"{name}.txt").read_text(encoding="utf-8")


def gpus_of(answers: Any) -> tuple[tuple[Gpu, ...], GpuDriver | None]:
    return make_gpus(answers, ())


def test_a_query_of_2018() -> None:
    (gpu,), driver = gpus_of(parse_query(text("smi_q_v100_410")))
    assert driver == GpuDriver("410.48", None)
    assert (gpu.name, gpu.pci_address) == ("Tesla V100-PCIE-32GB", "0000:18:00.0")
    assert (gpu.pci_id, gpu.pci_subsystem) == ("10de:1db6", "10de:124a")
    assert gpu.memory_total_bytes == 32480 * MIB and gpu.memory_free_bytes == 1286 * MIB
    assert (gpu.pcie_generation_now, gpu.pcie_width_now, gpu.pcie_width_max) == (3, 16, 16)
    assert (gpu.sm_clock_now_mhz, gpu.memory_clock_max_mhz) == (1380, 877)
    assert (gpu.temperature_c, gpu.memory_temperature_c, gpu.slowdown_temperature_c) == (40, 39, 87)
    assert (gpu.power_draw_w, gpu.power_limit_w, gpu.power_limit_max_w) == (58.81, 250.0, 250.0)
    assert gpu.fan_percent is None and gpu.performance_state == 0 and gpu.busy_percent == 44
    assert gpu.ecc_enabled is True and gpu.ecc == EccCounts(0, 0, 0, 0)
    assert gpu.retired_pages == RetiredPages(0, 0, False) and gpu.row_remaps is None
    assert gpu.throttle_reasons == () and gpu.persistence is False and gpu.mig is None
    assert gpu.compute_mode == "default" and gpu.bar1_bytes == 32768 * MIB
    assert gpu.processes == (GpuProcess(315406, "python", 31181 * MIB),)
    assert gpu.pcie_replays == 0


def test_a_query_of_2026() -> None:
    (gpu,), driver = gpus_of(parse_query(text("smi_q_h200_580")))
    assert driver == GpuDriver("580.159.04", "13.0")
    assert gpu.name == "NVIDIA H200" and gpu.memory_total_bytes == 150754820096
    assert gpu.pcie_generation_card == 5 and gpu.pci_id == "10de:2335"
    assert gpu.row_remaps == RowRemaps(0, 0, False, False) and gpu.retired_pages is None
    assert gpu.throttle_reasons == ("idle",) and gpu.mig is False and gpu.persistence is True
    assert (gpu.power_draw_w, gpu.power_limit_max_w) == (78.81, 700.0)
    assert gpu.slowdown_temperature_c is None  # told as a distance only
    assert gpu.memory_temperature_c == 34 and gpu.processes == ()


@pytest.mark.parametrize(
    ("line", "broken", "field"),
    [
        ("GPU Current Temp            : 40 C", "GPU Current Temp : ERR!", "temperature_c"),
        ("Power Draw                  : 58.81 W", "Power Draw : Unknown Error", "power_draw_w"),
        ("Power Limit                 : 250.00 W\n        Def",
         "Power Limit : [Not Supported]\n        Def", "power_limit_w"),
        ("Compute Mode                    : Default", "Compute Mode : N/A", "compute_mode"),
        ("Current             : 16x", "Current             : N/A", "pcie_width_now"),
        ("Replays since reset         : 0", "Replays since reset : [N/A]", "pcie_replays"),
    ],
)  # fmt: skip
def test_what_the_driver_does_not_say_is_unknown(line: str, broken: str, field: str) -> None:
    whole = text("smi_q_v100_410")
    assert line in whole
    (gpu,), _ = gpus_of(parse_query(whole.replace(line, broken)))
    assert getattr(gpu, field) is None
    assert gpu.name == "Tesla V100-PCIE-32GB"


def test_several_cards_several_processes_errors_and_throttling() -> None:
    one = text("smi_q_v100_410")
    start = one.index("GPU 00000000:18:00.0")
    other = (
        one[start:]
        .replace("00000000:18:00.0", "00000000:AF:00.0")
        .replace("HW Slowdown                 : Not Active", "HW Slowdown                 : Active")
        .replace("HW Thermal Slowdown     : Not Active", "HW Thermal Slowdown     : Active")
        .replace("Single Bit ECC              : 0", "Single Bit ECC              : 3")
        .replace("Pending                     : No", "Pending                     : Yes")
        .replace(
            "                Total               : 0", "                Total               : 7"
        )
        .replace("Compute Mode                    : Default", "Compute Mode : Exclusive_Process")
        + "        Process ID                  : 99\n            Type : C\n"
        "            Name : python3 /srv/someone/secret.py\n"
        "            Used GPU Memory : N/A\n"
    )
    (first, second), _ = gpus_of(parse_query(one + other))
    assert first.processes == (GpuProcess(315406, "python", 31181 * MIB),)
    assert second.pci_address == "0000:af:00.0" and second.ecc == EccCounts(7, 7, 7, 7)
    assert second.retired_pages == RetiredPages(3, 0, True)
    assert second.throttle_reasons == ("HW slowdown", "HW thermal slowdown")
    assert second.compute_mode == "exclusive process"
    assert second.processes is not None
    assert second.processes[1] == GpuProcess(99, "python3", None)


@pytest.mark.parametrize(("name", "driver"), [("550", "550.144.03"), ("570", "570.133.20")])
def test_a_table(name: str, driver: str) -> None:
    gpus, found = gpus_of(parse_table(text(f"smi_2xv100_{name}")))
    assert found is not None and found.version == driver and found.cuda is not None
    assert [gpu.name for gpu in gpus] == ["Tesla V100-SXM2-16GB"] * 2
    for gpu in gpus:
        assert gpu.memory_total_bytes == 16384 * MIB and gpu.power_limit_w == 300.0
        assert gpu.performance_state == 0 and gpu.busy_percent == 0 and gpu.fan_percent is None
        assert gpu.persistence is False and gpu.ecc_enabled is True and gpu.mig is None
        assert gpu.compute_mode == "default" and gpu.processes is not None
        assert [process.name for process in gpu.processes] == ["Xorg"]
    assert gpus[0].pci_address == "0000:08:00.0"


def test_a_table_with_mig_and_nobody_at_work() -> None:
    (gpu,), _ = gpus_of(parse_table(text("smi_h200_580")))
    assert gpu.mig is False and gpu.processes == () and gpu.temperature_c == 31


def test_a_table_with_a_sick_card_a_cut_name_and_a_fan() -> None:
    table = (
        text("smi_2xv100_550")
        .replace("0  Tesla V100-SXM2-16GB ", "0  Tesla V100-SXM2...  ", 1)
        .replace("N/A   31C    P0             24W /  300W", "ERR! ERR! ERR!       ERR! / ERR! ")
        .replace("| N/A   30C    P0 ", "| 35%   30C    P8 ", 1)
        .replace("     0%      Default |", "    ERR!     E. Proc. |", 1)
    )  # fmt: skip
    (first, second), _ = gpus_of(parse_table(table))
    assert first.name == "NVIDIA GPU" and first.temperature_c is None
    assert first.power_limit_w is None and first.busy_percent is None
    assert first.compute_mode == "exclusive process"
    assert first.memory_total_bytes == 16384 * MIB
    assert second.fan_percent == 35 and second.performance_state == 8


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library: 580", 18),
        ("Failed to initialize NVML: Insufficient Permissions", 4),
        ("Failed to initialize NVML: Unknown Error", 999),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9),
    ],
)  # fmt: skip
def test_why_there_is_no_list(said: str, code: int) -> None:
    answers = read_smi(PackedFiles({TABLE: said, QUERY: said}))
    assert answers is not None and answers.error is not None
    assert answers.error.code == code and answers.gpus == ()


def test_a_lost_card_keeps_its_address() -> None:
    said = "Unable to determine the device handle for GPU0000:18:00.0: GPU is lost.  Reboot\n"
    answers = read_smi(PackedFiles({TABLE: said}))
    assert answers is not None and answers.gpus[0]["error"]["code"] == 15
    assert answers.gpus[0]["pci"] == {"busId": "0000:18:00.0"}


def test_a_lost_card_beside_one_that_works() -> None:
    lost = "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error\n"
    files = packed("machine_b") | {QUERY: lost + text("smi_q_v100_410")}
    del files["nvml.json"]
    machine = read_machine(PackedFiles(files))
    assert [gpu.pci_address for gpu in machine.gpus] == ["0000:18:00.0"]
    (trouble,) = machine.gpu_troubles
    assert (trouble.code, trouble.pci_address) == ("unknown", "0000:3b:00.0")


def test_no_devices_and_no_library_are_two_things() -> None:
    found = read_smi(PackedFiles({TABLE: "No devices were found\n"}))
    assert found is not None and found.gpus == () and found.error is None
    missing = "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system."
    told = read_smi(PackedFiles({TABLE: missing}))
    assert told is not None and told.error is not None and told.error.code == 12
    # On a bus without a card nothing is missing.
    bare = {TABLE: missing, "sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n"}
    assert read_machine(PackedFiles(bare)).gpu_troubles == ()
    assert read_smi(PackedFiles({})) is None


def test_a_capture_of_texts_alone_is_a_machine_with_gpus() -> None:
    files = packed("machine_b")
    del files["nvml.json"]
    machine = read_machine(PackedFiles(files | {QUERY: text("smi_q_v100_410")}))
    (gpu,) = machine.gpus
    assert gpu.numa_node == 0  # from the bus, as ever
    assert gpu.compute_capability == (7, 0)  # from the table of cards
    assert machine.gpu_troubles == ()
    assert machine.driver is not None and machine.driver.version == "410.48"


def test_nvml_that_answers_is_not_overruled() -> None:
    files = packed("machine_b") | {QUERY: text("smi_q_h200_580")}
    machine = read_machine(PackedFiles(files))
    assert [gpu.name for gpu in machine.gpus] == ["Tesla V100-SXM2-32GB"]


def test_an_nvml_that_is_too_old_for_its_binding_gives_way_to_the_text() -> None:
    files = packed("machine_b") | {QUERY: text("smi_q_v100_410")}
    files["nvml.json"] = {"error": {"code": 13, "words": "Function Not Found"}}
    machine = read_machine(PackedFiles(files))
    assert [gpu.name for gpu in machine.gpus] == ["Tesla V100-PCIE-32GB"]
    assert machine.gpu_troubles == ()


PIECES = [line for name in ("smi_q_v100_410", "smi_q_h200_580", "smi_2xv100_550")
          for line in text(name).splitlines()]  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=60)), max_size=60))
def test_any_text_gives_facts_or_none(lines: list[str]) -> None:
    for head in ("==NVSMI LOG==\nGPU 00000000:18:00.0\n", ""):
        said = head + "\n".join(lines)
        for answers in (parse_query(said), parse_table(said)):
            gpus, driver = make_gpus(answers, ())
            assert len(to_json(gpus)) + len(to_json(driver)) < MIB


def test_errors_among_the_answers_are_kept() -> None:
    sick = text("smi_q_v100_410")
    healthy = parse_query(sick)
    assert healthy is not None and "unreadable" not in healthy.gpus[0]
    line = next(x for x in sick.splitlines() if x.strip().startswith("GPU Current Temp"))
    value = line.partition(": ")[2]
    broken = parse_query(sick.replace(line, line.replace(value, "Unknown Error")))
    assert broken is not None and broken.gpus[0]["unreadable"] == "Unknown Error: gpu current temp"
    lost = parse_query(sick.replace(line, line.replace(value, "GPU is lost")))
    assert lost is not None and lost.gpus[0]["error"] == {"words": "GPU is lost", "code": 15}


def test_a_table_with_errors_in_it_says_so() -> None:
    table = text("smi_2xv100_550")
    row = next(x for x in table.splitlines() if re.match(r"\| +N/A +\d+C ", x))
    answers = parse_table(table.replace(row, row.replace("N/A", "ERR!", 1), 1))
    assert answers is not None
    assert [g.get("unreadable") for g in answers.gpus] == ["ERR!", None]


# The headings of branch 610 and later.
TABLE_610 = "KMD Version: 610.43.02     CUDA UMD Version: 13.3    "
QUERY_610 = """Driver Version                : 610.43.02 [Deprecated; will be removed in CUDA 14.0.]
CUDA Version                  : 13.3 [Deprecated; will be removed in CUDA 14.0.]
KMD Version                   : 610.43.02
CUDA UMD Version              : 13.3
"""


def test_versions_under_the_names_that_newer_drivers_give_them() -> None:
    old = text("smi_h200_580")
    head = re.search(r"Driver Version: .*CUDA Version: \S+ +", old)
    assert head is not None
    table = parse_table(old.replace(head[0], TABLE_610))
    assert table is not None and table.gpus
    assert (table.driver_version, table.cuda_version) == ("610.43.02", 13030)
    query = re.sub(r"Driver Version.*\nCUDA Version.*\n", QUERY_610, text("smi_q_h200_580"))
    answers = parse_query(query)
    assert answers is not None
    assert (answers.driver_version, answers.cuda_version) == ("610.43.02", 13030)
    alone = parse_query(query.replace(QUERY_610, "\n".join(QUERY_610.splitlines()[2:]) + "\n"))
    assert alone is not None and alone.driver_version == "610.43.02"


def test_a_warning_behind_the_table_is_of_its_card() -> None:
    table = text("smi_2xv100_550")
    second = [g["pci"]["busId"] for g in parse_table(table).gpus][1]  # type: ignore[union-attr]
    answers = parse_table(f"{table}\nWARNING: infoROM is corrupted at gpu {second[-12:]}\n")
    assert answers is not None
    assert [g.get("inforom") for g in answers.gpus] == [None, "infoROM is corrupted"]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "no_library"),
        ("Unable to determine the device handle for gpu 0000:3B:00.0: Unable to communicate with"
         " GPU because it is insufficiently powered.", "no_power"),
    ],
)  # fmt: skip
def test_what_nvidia_smi_says_of_library_and_power(said: str, code: str) -> None:
    files = PackedFiles({said_path("nvidia-smi"): said + "\n"})
    (trouble,) = read_machine(files).gpu_troubles
    assert trouble.code == code


ORIN = """\
| NVIDIA-SMI 540.4.0                Driver Version: 540.4.0      CUDA Version: 12.6     |
|-----------------------------------------+----------------------+----------------------+
|   0  Orin (nvgpu)                  N/A  | N/A              N/A |                  N/A |
| N/A   N/A  N/A               N/A /  N/A | Not Supported        |     N/A          N/A |
+-----------------------------------------+----------------------+----------------------+
"""


def test_a_module_without_a_bus_is_a_card() -> None:
    machine = read_machine(PackedFiles({said_path("nvidia-smi"): ORIN}))
    (gpu,) = machine.gpus
    assert gpu.name == "Orin (nvgpu)" and gpu.pci_address is None
    assert gpu.memory_total_bytes is None and machine.gpu_troubles == ()


def test_a_text_that_ends_before_its_first_card_does_not_say_that_there_is_none() -> None:
    for name, command, lines in (
        ("smi_2xv100_550", (), 4),
        ("smi_q_v100_410", ("-q",), 5),
    ):
        head = "\n".join(text(name).splitlines()[:lines]) + "\n"
        files = {said_path("nvidia-smi", *command): head}
        machine = read_machine(PackedFiles(files))
        assert machine.driver is not None and machine.driver.version
        assert (machine.gpus, machine.gpu_troubles) == ((), ())


@pytest.mark.parametrize(
    ("mode", "status", "codes"),
    [("VGPU", "Unlicensed (Unrestricted)", ["unlicensed"]),
     ("VGPU", "Licensed (Expiry: 2026-12-1 0:0:0 GMT)", []),
     ("None", "Unlicensed (Unrestricted)", [])],
)  # fmt: skip
def test_a_vgpu_without_a_licence(mode: str, status: str, codes: list[str]) -> None:
    query = f"""\
==============NVSMI LOG==============
Driver Version                            : 550.54.15
GPU 00000000:02:00.0
    Product Name                          : GRID V100D-32C
    GPU Virtualization Mode
        Virtualization Mode               : {mode}
    vGPU Software Licensed Product
        License Status                    : {status}
"""
    machine = read_machine(PackedFiles({said_path("nvidia-smi", "-q"): query}))
    assert [trouble.code for trouble in machine.gpu_troubles] == codes
    assert len(machine.gpus) == 1
