"""Why GPUs cannot be used: each cause told apart from the others that the driver names alike."""

from dataclasses import replace
from typing import Any

import pynvml
import pytest
from captured_machines import packed
from fake_nvml import FakeNvml, fails
from hypothesis import given, settings
from hypothesis import strategies as st

from workhorse.codec import to_json
from workhorse.machine.files import PackedFiles
from workhorse.machine.gpu_trouble import (
    KernelModule,
    Surroundings,
    find_troubles,
    read_surroundings,
    with_lost_cards,
)
from workhorse.machine.nvml import NvmlAnswers, NvmlError, ask_driver
from workhorse.machine.pci import Card
from workhorse.machine.probe import read_machine
from workhorse.records import GpuTrouble, KernelEvent

CARD = Card("0000:18:00.0", "10de:1db6", "nvidia", 1)
OTHER = Card("0000:3b:00.0", "10de:1db6", "nvidia", 1)
MODULE = KernelModule("580.159.04", False)
PLAIN = Surroundings(MODULE, True, False)


def codes(troubles: tuple[GpuTrouble, ...]) -> list[str]:
    return [trouble.code for trouble in troubles]


def failing(code: int | None, words: str = "it fails") -> NvmlAnswers:
    return NvmlAnswers(error=NvmlError(words, code))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "library_mismatch"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no_permission"),
        (pynvml.NVML_ERROR_GPU_IS_LOST, "lost"),
        (pynvml.NVML_ERROR_TIMEOUT, "silent"),
        (None, "silent"),
        (pynvml.NVML_ERROR_UNKNOWN, "unknown"),
        (12345, "unknown"),
    ],
)
def test_what_nvml_says_when_it_does_not_start(code: int | None, expected: str) -> None:
    troubles = find_troubles(failing(code), [CARD], PLAIN)
    assert troubles == (GpuTrouble(expected, "it fails"),)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "nodes", "container", "expected"),
    [
        (None, None, False, "not_loaded"),
        (None, True, False, "not_loaded"),
        (MODULE, False, False, "no_device_nodes"),
        (MODULE, None, False, "unknown"),
        (MODULE, False, True, "container"),
    ],
)
def test_not_loaded_has_several_causes(
    module: KernelModule | None, nodes: bool | None, container: bool, expected: str
) -> None:
    around = Surroundings(module, nodes, container)
    assert codes(find_troubles(failing(9), [CARD], around)) == [expected]


def test_an_unknown_error_with_a_known_cause() -> None:
    lost_devices = Surroundings(MODULE, None, True)
    assert codes(find_troubles(failing(999), [CARD], lost_devices)) == ["container"]
    no_nodes = Surroundings(MODULE, False, False)
    assert codes(find_troubles(failing(999), [CARD], no_nodes)) == ["no_device_nodes"]


def test_a_library_beside_nouveau_names_nouveau() -> None:
    card = Card("0000:18:00.0", "10de:1db6", "nouveau", 0)
    (trouble,) = find_troubles(failing(9), [card], Surroundings(None, False, False))
    assert trouble == GpuTrouble("other_driver", "nouveau", "0000:18:00.0", "10de:1db6")


@pytest.mark.parametrize(
    ("held_by", "container", "expected"),
    [(None, False, "no_driver"), ("nouveau", False, "other_driver"),
     ("vfio-pci", True, "other_driver"), ("nvidia", False, "no_library"),
     ("nvidia", True, "container")],
)  # fmt: skip
def test_without_a_library(held_by: str | None, container: bool, expected: str) -> None:
    card = Card("0000:18:00.0", "10de:1db6", held_by, 0)
    (trouble,) = find_troubles(None, [card], Surroundings(None, None, container))
    assert trouble.code == expected and trouble.pci_address == "0000:18:00.0"


def test_nothing_here_is_no_trouble() -> None:
    assert find_troubles(None, [], Surroundings(None, False, True)) == ()


def test_a_driver_that_finds_no_card_is_told() -> None:
    assert codes(find_troubles(NvmlAnswers(), [], PLAIN)) == ["none_found"]
    assert codes(find_troubles(NvmlAnswers(), [CARD], PLAIN)) == ["not_shown"]


def test_the_libraries_alone_on_a_machine_without_a_card_do_not_block() -> None:
    bare = Surroundings(None, None, False, bus=True)
    assert codes(find_troubles(failing(9), [], bare)) == ["none_found"]
    # Where the bus could not be read a card may be there.
    assert codes(find_troubles(failing(9), [], replace(bare, bus=False))) == ["not_loaded"]
    assert codes(find_troubles(failing(9), [CARD], bare)) == ["not_loaded"]


def test_a_text_that_says_nothing_of_drivers_is_no_missing_driver() -> None:
    silent = replace(CARD, kernel_driver=None, driver_told=False)
    assert codes(find_troubles(None, [silent], PLAIN)) == ["driver_not_told"]
    assert codes(find_troubles(NvmlAnswers(), [silent], PLAIN)) == ["not_shown"]
    gone = replace(silent, gone=True)
    assert codes(find_troubles(None, [gone], PLAIN)) == ["lost"]


def test_a_card_that_answers_with_errors_is_told_and_stays() -> None:
    facts = {"pci": {"busId": "00000000:18:00.0"}, "unreadable": "ERR!: fan speed"}
    answers = NvmlAnswers(gpus=(facts,))
    (trouble,) = find_troubles(answers, [CARD], PLAIN)
    assert trouble == GpuTrouble("errors", "ERR!: fan speed", CARD.address, CARD.pci_id)


def test_a_module_without_library_and_without_sysfs_is_told() -> None:
    (trouble,) = find_troubles(None, [], Surroundings(MODULE, None, True))
    assert trouble == GpuTrouble("container", "580.159.04")


def test_one_lost_gpu_is_named_by_the_card_that_is_missing() -> None:
    def handle(index: int) -> int:
        return index or fails(pynvml.NVML_ERROR_GPU_IS_LOST)()

    fake = FakeNvml(
        2,
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetPciInfo_v3=lambda _: {"busId": "00000000:3B:00.0"},
    )
    troubles = find_troubles(ask_driver(fake), [CARD, OTHER], PLAIN)
    assert troubles == (GpuTrouble("lost", "GPU is lost", "0000:18:00.0", "10de:1db6"),)


def test_an_unknown_error_of_a_card_that_fell_off_the_bus_is_a_loss() -> None:
    here = GpuTrouble("unknown", "Unknown Error", "0000:18:00.0", "10de:1db6")
    nowhere = GpuTrouble("unknown", "Unknown Error")
    fallen = KernelEvent("xid", 79, "0000:18:00.0", "NVRM: Xid (PCI:0000:18:00): 79")
    other = KernelEvent(
        "nvrm", None, "0000:3b:00.0", "NVRM: GPU 0000:3b:00.0 has fallen off the bus"
    )
    placeless = KernelEvent("xid", 79, None, "NVRM: Xid: 79")
    assert codes(with_lost_cards([here, nowhere], [fallen, placeless])) == ["lost", "unknown"]
    assert with_lost_cards([here, nowhere], [other]) == (here, nowhere)
    assert with_lost_cards([here], None) == (here,)


def test_nobody_is_accused_where_a_working_card_has_no_address() -> None:
    answers = NvmlAnswers(gpus=({"error": {"code": 15, "words": "lost"}}, {"name": "V100"}))
    (trouble,) = find_troubles(answers, [CARD, OTHER], PLAIN)
    assert trouble == GpuTrouble("lost", "lost", None, None)


def test_a_card_that_the_driver_leaves_out() -> None:
    answers = NvmlAnswers(gpus=({"pci": {"busId": "00000000:18:00.0"}},))
    (trouble,) = find_troubles(answers, [CARD, OTHER], PLAIN)
    assert trouble == GpuTrouble("not_shown", None, "0000:3b:00.0", "10de:1db6")
    away = Card("0000:3b:00.0", "10de:1db6", "vfio-pci", None)
    (trouble,) = find_troubles(answers, [CARD, away], PLAIN)
    assert trouble.code == "other_driver" and trouble.said == "vfio-pci"


# ------------------------------------------------------------ what files tell


def surroundings(**files: str) -> Surroundings:
    packed_files = {path.replace("__", "/"): text for path, text in files.items()}
    return read_surroundings(PackedFiles(dict(packed_files)), container=False)


def module_of(path: str, text: str) -> KernelModule | None:
    return read_surroundings(PackedFiles({path: text}), container=False).module


def test_the_open_and_the_proprietary_module() -> None:
    version = "proc/driver/nvidia/version"
    closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC\n"
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
    assert module_of(version, closed) == KernelModule("535.183.01", False)
    assert module_of(version, opened) == KernelModule("580.159.04", True)
    assert module_of("sys/module/nvidia/version", "470.256.02\n") == KernelModule(
        "470.256.02", None
    )
    assert module_of("proc/version", "Linux") is None


def test_device_nodes_are_unknown_in_a_capture_without_them() -> None:
    assert surroundings().device_nodes is None
    assert surroundings(dev__null="").device_nodes is False
    assert surroundings(dev__nvidia0="").device_nodes is True
    assert surroundings(dev__nvidiactl="").device_nodes is True
    assert surroundings(**{"dev/nvidia-caps/x": ""}).device_nodes is False


def test_a_container_without_the_toolkit_is_told_from_a_missing_library() -> None:
    files = packed("machine_a")
    del files["nvml.json"]
    files["sys/bus/pci/devices/0000:82:00.0/uevent"] = "DRIVER=nvidia\n"
    assert codes(read_machine(PackedFiles(files)).gpu_troubles) == ["no_library"]
    files["run/.containerenv"] = ""
    assert codes(read_machine(PackedFiles(files)).gpu_troubles) == ["container"]


def test_a_machine_keeps_its_driver_when_nvml_fails() -> None:
    files = packed("machine_b")
    files["nvml.json"] = {"error": {"code": 18, "words": "Driver/library version mismatch"}}
    files["sys/module/nvidia/version"] = "570.133.20\n"
    machine = read_machine(PackedFiles(files))
    assert machine.gpus == () and codes(machine.gpu_troubles) == ["library_mismatch"]
    assert machine.driver is not None and machine.driver.version == "570.133.20"


ERRORS: Any = st.one_of(
    st.none(), st.integers(), st.text(max_size=5),
    st.fixed_dictionaries({"code": st.one_of(st.none(), st.integers(), st.text(max_size=3)),
                           "words": st.one_of(st.none(), st.text(max_size=20))}),
)  # fmt: skip
PLACES = st.sampled_from([None, "00000000:18:00.0", "00000000:3B:00.0", "?", 5])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(
        st.builds(lambda error, place: {"error": error, "pci": {"busId": place}}, ERRORS, PLACES),
        st.builds(lambda place: {"pci": {"busId": place}}, PLACES),
    ), max_size=4),
    st.lists(st.sampled_from([CARD, OTHER]), max_size=3),
)  # fmt: skip
def test_any_answers_give_troubles(gpus: list[dict[str, Any]], cards: list[Card]) -> None:
    troubles = find_troubles(NvmlAnswers(gpus=tuple(gpus)), cards, PLAIN)
    assert to_json(troubles)
    told = [t for t in troubles if t.code not in ("not_shown", "none_found")]
    assert len(told) == sum("error" in g for g in gpus)


def test_a_damaged_inforom_is_told_of_a_card_that_works() -> None:
    facts = {"pci": {"busId": "00000000:18:00.0"}, "inforom": "infoROM is corrupted"}
    (trouble,) = find_troubles(NvmlAnswers(gpus=(facts,)), [CARD], PLAIN)
    assert trouble == GpuTrouble("inforom", "infoROM is corrupted", CARD.address, CARD.pci_id)
