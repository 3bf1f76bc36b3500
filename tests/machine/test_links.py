"""How GPUs reach each other: NVML's answers, and nvidia-smi's tables of four driver branches."""

from pathlib import Path
from typing import Any

import pynvml
import pytest
from fake_nvml import FakeNvml, fails, pci_info
from hypothesis import given, settings
from hypothesis import strategies as st

from workhorse.codec import to_json
from workhorse.machine.files import PackedFiles, said_path
from workhorse.machine.gpu import make_gpus
from workhorse.machine.links import read_links
from workhorse.machine.nvml import NvmlAnswers, ask_driver
from workhorse.records import Gpu, GpuLink

TEXTS = Path(__file__).parent / "texts"
TOPOLOGY = said_path("nvidia-smi", "topo", "-m")
PEERS = said_path("nvidia-smi", "topo", "-p2p", "r")


def text(name: str) -> str:
    return (TEXTS / f"{name}.txt").read_text(encoding="utf-8")


def some(count: int) -> tuple[Gpu, ...]:
    facts: dict[str, Any] = {"name": "Tesla V100-SXM2-32GB"}
    return make_gpus(NvmlAnswers(gpus=(facts,) * count), ())[0]


def test_two_cards_of_two_sockets() -> None:
    links = read_links(PackedFiles({TOPOLOGY: text("topo_2xv100_570")}), some(2), None)
    assert links == (GpuLink(0, 1, "SYS", None, None),)


def test_eight_cards_joined_by_one_two_or_no_nvlinks() -> None:
    links = read_links(PackedFiles({TOPOLOGY: text("topo_8xv100_470")}), some(8), None)
    assert len(links) == 28
    of = {(link.first, link.second): link for link in links}
    assert of[0, 1] == GpuLink(0, 1, "NVLINK", 1, None)
    assert of[0, 2] == GpuLink(0, 2, "NVLINK", 2, None)
    assert of[0, 4] == GpuLink(0, 4, "SYS", None, None)
    # Six links a card, each told from both ends.
    assert sum(link.nvlinks or 0 for link in links) == 8 * 6 / 2


def test_peer_access_in_the_drivers_words() -> None:
    matrix = " \tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\tCNS\n GPU1\tOK\tX\tU\n GPU2\tCNS\tU\tX\n"
    ways = "\tGPU0\tGPU1\tGPU2\tCPU Affinity\nGPU0\t X \tPIX\tSYS\t0-7\nGPU1\tPIX\t X \tPHB\t0-7\n"
    links = read_links(PackedFiles({TOPOLOGY: ways, PEERS: matrix}), some(3), None)
    assert links == (
        GpuLink(0, 1, "PIX", None, True),
        GpuLink(0, 2, "SYS", None, False, "CNS"),
        GpuLink(1, 2, "PHB", None, None),
    )


def test_colours_and_a_single_card() -> None:
    files = PackedFiles({TOPOLOGY: text("topo_h200_580"), PEERS: text("topo_p2p_h200_580")})
    assert read_links(files, some(1), None) == ()
    coloured = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \tNV18\t0-15\n"
    (link,) = read_links(PackedFiles({TOPOLOGY: coloured}), some(2), None)
    assert link == GpuLink(0, 1, "NVLINK", 18, None)


def nvml_with(ends: dict[int, list[tuple[str, int]]], **functions: Any) -> FakeNvml:
    """Cards at buses 1, 2, … whose active links end at the given addresses and kinds."""

    def state(card: int, link: int) -> int:
        if link >= 6:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(link < len(ends[card]))

    return FakeNvml(
        len(ends),
        nvmlDeviceGetName=lambda card: "Tesla V100-SXM2-32GB",
        nvmlDeviceGetPciInfo_v3=lambda card: pci_info(f"00000000:{card + 1:02X}:00.0"),
        nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetNvLinkRemotePciInfo=lambda card, link: pci_info(ends[card][link][0]),
        nvmlDeviceGetNvLinkRemoteDeviceType=lambda card, link: ends[card][link][1],
        **functions,
    )


def links_of(fake: FakeNvml) -> tuple[GpuLink, ...]:
    answers = ask_driver(fake)
    return read_links(PackedFiles({}), make_gpus(answers, ())[0], answers)


def test_nvml_counts_links_between_cards() -> None:
    to_second, to_first = ("00000000:02:00.0", 0), ("00000000:01:00.0", 0)
    bridge = ("00000004:04:00.0", 1)  # the processor of a POWER9
    fake = nvml_with(
        {0: [to_second, to_second, bridge], 1: [to_first, to_first], 2: []},
        nvmlDeviceGetTopologyCommonAncestor=lambda a, b: 50 if 2 in (a, b) else 30,
        nvmlDeviceGetP2PStatus=lambda a, b, kind: {(0, 1): 0, (0, 2): 3, (1, 2): 6}[a, b],
    )
    assert links_of(fake) == (
        GpuLink(0, 1, "NVLINK", 2, True),
        GpuLink(0, 2, "SYS", None, False, "TNS"),
        GpuLink(1, 2, "SYS", None, None),
    )


def test_through_a_switch_as_many_as_the_one_with_fewer_has() -> None:
    switch = ("00000000:C0:00.0", 2)
    fake = nvml_with(
        {0: [switch] * 6, 1: [switch] * 5},
        nvmlDeviceGetTopologyCommonAncestor=lambda a, b: 20,
        nvmlDeviceGetP2PStatus=fails(pynvml.NVML_ERROR_NOT_SUPPORTED),
    )
    assert links_of(fake) == (GpuLink(0, 1, "NVLINK", 5, None),)


def test_one_card_is_not_asked_for_links() -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("asked")

    fake = FakeNvml(1, nvmlDeviceGetName=lambda _: "card", nvmlDeviceGetNvLinkState=refuse)
    assert links_of(fake) == ()


@pytest.mark.parametrize("garbage", [None, -1, 2**70, "x", [], [[]], {"a": 1}, [{"remote": 5}]])
def test_garbage_answers_are_no_links(garbage: Any) -> None:
    facts = {"name": "card", "pci": garbage, "nvlinks": garbage}
    link = {"first": 0, "second": 1, "ancestor": garbage, "p2p_read": garbage}
    answers = NvmlAnswers(gpus=(facts, facts), links=(link, {"first": garbage}))
    assert read_links(PackedFiles({}), some(2), answers) == ()


WORDS = st.sampled_from(["GPU0", "GPU1", "GPU2", "X", "NV2", "NV0", "NV99999", "SYS", "PIX", "OK",
                         "CNS", "\t", "\n", "\x1b[4m", "GPU999999", "mlx5_0", ""])  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(WORDS, max_size=40), st.lists(st.one_of(WORDS, st.text(max_size=9)), max_size=40))
def test_any_table_gives_links_or_none(ways: list[str], peers: list[str]) -> None:
    files = PackedFiles({TOPOLOGY: " ".join(ways), PEERS: " ".join(peers)})
    links = read_links(files, some(3), None)
    assert len(links) <= 3 and to_json(links)
    assert all(link.first < link.second and (link.nvlinks or 1) > 0 for link in links)
