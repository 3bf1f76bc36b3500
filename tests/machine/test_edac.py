"""Memory modules and error counts without root's rights, from the kernel's memory controllers."""

import pytest
from dmi_boards import UNKNOWN, cpu, files, module

from workhorse.machine.dimms import add_modules
from workhorse.machine.files import PackedFiles
from workhorse.units import GIB

MC = "sys/devices/system/edac/mc"


def edac(
    controller: int, index: int, label: str, location: str, size: int = 16384
) -> dict[str, str]:
    place = f"{MC}/mc{controller}/dimm{index}"
    return {
        f"{place}/dimm_label": label,
        f"{place}/dimm_location": location,
        f"{place}/size": f"{size}\n",
        f"{place}/dimm_mem_type": "Registered-DDR4\n",
    }


def test_the_memory_controllers_tell_the_channels_to_everybody() -> None:
    tree = {
        **edac(0, 0, "CPU_SrcID#0_Ha#0_Chan#0_DIMM#0\n", "channel 0 slot 0 \n"),
        **edac(0, 3, "CPU_SrcID#0_Ha#0_Chan#1_DIMM#0\n", "channel 1 slot 0 \n"),
        **edac(1, 0, "CPU_SrcID#1_Ha#0_Chan#0_DIMM#0\n", "channel 0 slot 0 \n"),
        **edac(1, 1, "CPU_SrcID#1_Ha#0_Chan#0_DIMM#1\n", "channel 0 slot 1 \n"),
        f"{MC}/mc0/ce_count": "3\n",
        f"{MC}/mc1/ce_count": "4\n",
        f"{MC}/mc0/ue_count": "0\n",
    }
    memory, doubts = add_modules(PackedFiles(dict(tree)), UNKNOWN, cpu())
    assert memory.channels_in_use == (2, 1) and doubts == ()
    assert memory.rated_bandwidth_bytes_per_s is None  # the controllers tell no speed
    assert (memory.ecc_corrected, memory.ecc_uncorrected) == (7, 0)
    assert memory.dimms is not None and memory.dimms[0].kind == "DDR4"
    assert memory.dimms[0].size_bytes == 16 * GIB


def test_controllers_with_two_home_agents_have_four_channels() -> None:
    tree: dict[str, object] = {}
    for index, (agent, channel) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        label = f"CPU_SrcID#0_Ha#{agent}_Chan#{channel}_DIMM#0"
        tree.update(edac(agent, index, label, f"channel {channel} slot 0"))
    memory, _ = add_modules(PackedFiles(tree), UNKNOWN, cpu(1))
    assert memory.channels_in_use == (4,)


def test_ranks_of_an_epyc_are_joined_into_modules() -> None:
    tree: dict[str, object] = {}
    for controller in range(2):
        for channel in range(3):
            for row in range(2):
                place = f"{MC}/mc{controller}/rank{2 * channel + row}"
                tree[f"{place}/dimm_label"] = f"mc#{controller}csrow#{row}channel#{channel}"
                tree[f"{place}/dimm_location"] = f"csrow {row} channel {channel} "
                tree[f"{place}/size"] = "16384"
                tree[f"{place}/dimm_mem_type"] = "Registered-DDR4"
    memory, _ = add_modules(PackedFiles(tree), UNKNOWN, cpu(2, 8, 3200))
    assert memory.channels_in_use == (3, 3)
    assert memory.dimms is not None and len(memory.dimms) == 6
    assert memory.dimms[0].size_bytes == 32 * GIB


def test_rows_of_an_old_kernel_count_their_channels() -> None:
    row = f"{MC}/mc0/csrow0"
    tree: dict[str, object] = {
        f"{row}/size_mb": "8192",
        f"{row}/mem_type": "Unbuffered-DDR3",
        f"{row}/ch0_dimm_label": "",
        f"{row}/ch1_dimm_label": "",
    }
    memory, _ = add_modules(PackedFiles(tree), UNKNOWN, cpu(1, 2))
    assert memory.channels_in_use == (2,)
    assert memory.dimms is not None and memory.dimms[0].size_bytes == 4 * GIB


def test_controllers_place_what_the_boards_labels_do_not() -> None:
    tree = {
        **edac(0, 0, "CPU_SrcID#0_Ha#0_Chan#0_DIMM#0", "channel 0 slot 0"),
        **edac(1, 0, "CPU_SrcID#1_Ha#0_Chan#3_DIMM#0", "channel 3 slot 0"),
    }
    memory, _ = add_modules(files(module("DIMM 1"), module("DIMM 13"), **tree), UNKNOWN, cpu())
    assert memory.channels_in_use == (1, 1)
    assert memory.rated_bandwidth_bytes_per_s == pytest.approx(2 * 2133 * 8e6)
