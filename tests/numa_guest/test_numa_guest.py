"""The guest's pieces and its stored record. Booting it takes minutes: `boot.py` by hand."""

import copy
import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boot
import guest
import pytest

RECORD = boot.HERE.parent.parent / "docs/measured/2026-11-30-numa-guest.md"


def recorded() -> dict[str, Any]:
    blocks = re.findall(r"```json\n(.*?)```", RECORD.read_text(encoding="utf-8"), re.DOTALL)
    document: dict[str, Any] = json.loads(blocks[-1])
    return document


def members(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Mode and content of each member of a cpio archive."""
    found, at = {}, 0
    while True:
        words = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        name = archive[at + 110 : at + 110 + words[11] - 1].decode()
        body_at = at + 110 + words[11]
        body_at += -body_at % 4
        at = body_at + words[6] + -words[6] % 4
        if name == "TRAILER!!!":
            return found
        found[name] = (words[1], archive[body_at : body_at + words[6]])


def test_the_record_is_of_a_host_with_two_nodes_and_shows_nothing_wrong() -> None:
    reports = recorded()
    assert reports.keys() == boot.HOSTS.keys()
    for host, memory_mib in boot.HOSTS.items():
        assert reports[host]["kernel_says"]["node0/distance"] == f"10 {boot.DISTANCE}"
        assert boot.wrong(reports[host], memory_mib) == []


def lose_node(report: dict[str, Any]) -> None:
    report["nodes"].pop()


def swap_cpus(report: dict[str, Any]) -> None:
    report["engines"]["one"]["cpus_allowed"] = "1,3"


def stay_home(report: dict[str, Any]) -> None:
    report["engines"]["CPUs of node 0, memory of node 1"]["pages"] = {"node 0": boot.ENGINE_PAGES}


def lean(report: dict[str, Any]) -> None:
    pages = boot.ENGINE_PAGES
    report["engines"]["all nodes"]["pages"] = {"node 0": pages - 99, "node 1": 99}


def prefer(report: dict[str, Any]) -> None:
    report["engines"]["one"]["policy"] = "prefer:0"


def end(report: dict[str, Any]) -> None:
    report["cpuset of node 0's memory"]["all nodes"] = {"failed": "ended", "told": {}}


def read_one(report: dict[str, Any]) -> None:
    report["bandwidths"] = [row for row in report["bandwidths"] if row["node"] == 0]


def half_full(report: dict[str, Any]) -> None:
    report["node 1 full of file cache"]["preferred"]["pages"] = {"node 1": boot.ENGINE_PAGES}


def spill(report: dict[str, Any]) -> None:
    report["node 1 full of file cache"]["bound"]["pages"] = {
        "node 0": 99,
        "node 1": boot.ENGINE_PAGES - 99,
    }


@pytest.mark.parametrize(
    "spoil", [lose_node, swap_cpus, stay_home, lean, prefer, end, read_one, half_full, spill]
)
def test_what_is_wrong_is_told(spoil: Callable[[dict[str, Any]], None]) -> None:
    report = copy.deepcopy(recorded()["two nodes"])
    spoil(report)
    assert len(boot.wrong(report, boot.HOSTS["two nodes"])) == 1


def test_the_file_system_has_what_the_first_process_needs() -> None:
    files = boot.guest_files()
    names = {os.path.basename(name) for name in files}  # noqa: PTH119
    assert {"guest.py", "enter.py", "probe.py", "msgspec", "libc.so.6"} - names == {"msgspec"}
    assert any("/msgspec/" in name for name in files)
    assert any(re.search(r"/ld-linux[\w-]*\.so", name) for name in files)
    assert str(Path(sys.executable).resolve()) in files
    assert all(path.is_file() for path in files.values())


def test_the_archive_holds_the_files_and_the_devices() -> None:
    out = io.BytesIO()
    boot.pack({"/guest.py": boot.HERE / "guest.py", "/a/b/c": Path(os.__file__)}, out)
    found = members(out.getvalue())
    assert found["guest.py"][1] == (boot.HERE / "guest.py").read_bytes()
    assert found["a/b/c"][1] == Path(os.__file__).read_bytes()
    assert (found["a"][0], found["a/b"][0], found["dev/null"][0]) == (0o40755, 0o40755, 0o20666)
    assert found["init"][1].startswith(b"#!/")


def test_the_fake_engine_and_the_marks_are_the_same_on_both_sides() -> None:
    compile(guest.ENGINE, "engine", "exec")
    assert (guest.BEGIN, guest.END) == (boot.BEGIN, boot.END)
    assert guest.ENGINE_BYTES == boot.ENGINE_PAGES * 4096
    assert boot.numbers("0-1,3") == [0, 1, 3]


def test_the_machine_has_two_nodes_of_two_cpus() -> None:
    words = " ".join(boot.command(Path("vmlinuz"), Path("initramfs"), Path("disk"), (512, 256)))
    for part in ("tcg", "nodeid=0,cpus=0-1,memdev=m0", "nodeid=1,cpus=2-3,memdev=m1", "-m 768M"):
        assert part in words
    words = " ".join(boot.command(Path("vmlinuz"), Path("initramfs"), Path("disk"), (512, 0)))
    assert "nodeid=1,cpus=2-3 " in words
