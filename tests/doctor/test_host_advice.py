"""What is advised for a host: each state a setting can be in, on machines of every kind."""

from dataclasses import replace
from typing import Any

import pytest

import builders
from workhorse.doctor.host import Advice, advise
from workhorse.knowledge.host_settings import knobs, place_pattern, recommendations
from workhorse.records import Machine

POLICY = "sys/devices/system/cpu/cpufreq/policy{}/{}"
NUMA = "proc/sys/kernel/numa_balancing"
ZONE = "proc/sys/vm/zone_reclaim_mode"
SWAPPINESS = "proc/sys/vm/swappiness"
THP = "sys/kernel/mm/transparent_hugepage/enabled"
DEFRAG = "sys/kernel/mm/transparent_hugepage/defrag"
HUGE = "proc/sys/vm/nr_hugepages"
LIMITS = "proc/self/limits"


def machine(*, nodes: int = 2, swap_bytes: int | None = 1 << 30, **more: Any) -> Machine:
    made = builders.machine(nodes=nodes, **more)
    return replace(made, memory=replace(made.memory, swap_total_bytes=swap_bytes))


def one(name: str, current: dict[str, str], of: Machine | None = None, **more: Any) -> Advice:
    (found,) = [a for a in advise(of or machine(), current, **more) if a.knob == name]
    return found


def governors(*values: str, offered: str = "performance powersave") -> dict[str, str]:
    texts = {}
    for i, value in enumerate(values):
        texts[POLICY.format(i, "scaling_governor")] = value + "\n"
        texts[POLICY.format(i, "scaling_available_governors")] = offered + "\n"
    return texts


# ---------------------------------------------------------------- the table


def test_every_setting_has_a_recommendation_and_every_recommendation_a_setting() -> None:
    assert {row.knob for row in recommendations()} == {knob.name for knob in knobs()}
    assert len({knob.name for knob in knobs()}) == len(knobs())


@pytest.mark.parametrize("knob", knobs(), ids=lambda knob: knob.name)
def test_no_written_setting_is_a_gpus(knob: Any) -> None:
    assert not (knob.written and knob.kind in ("persistence", "power", "memlock"))
    assert bool(knob.places) == (knob.kind not in ("persistence", "power"))


def test_every_text_is_there_in_both_languages_and_a_change_tells_its_cost() -> None:
    for row in recommendations():
        assert row.en.isascii() and not row.zh.isascii()
        assert (row.cost_en is None) == (row.cost_zh is None)
        assert (row.value is None) == (row.cost_en is None), row.knob


def test_a_place_is_exactly_the_file_meant() -> None:
    pattern = place_pattern("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
    assert pattern.fullmatch("sys/devices/system/cpu/cpu13/cpufreq/scaling_governor")
    for path in ("cpu/cpufreq/scaling_governor", "cpu1/../cpufreq/scaling_governor",
                 "cpu1/cpufreq/scaling_governor/x", "cpu12345/cpufreq/scaling_governor",
                 "cpu1/cpufreq/scaling_governor\n", "cpu/1/cpufreq/scaling_governor"):  # fmt: skip
        assert not pattern.fullmatch(f"sys/devices/system/cpu/{path}")


# ---------------------------------------------------------------- states


def test_a_governor_to_change_on_each_cpu_that_has_another() -> None:
    found = one("governor", governors("powersave", "performance", *["powersave"] * 9))
    assert found.state == "change"
    assert found.current == "powersave (10), performance (1)"
    assert found.recommended == "performance" and found.offered == ("performance", "powersave")
    assert found.cost is not None and "power" in found.cost.en and "cpufreq" in found.source
    paths = [change.path for change in found.changes]
    assert paths == [POLICY.format(i, "scaling_governor") for i in (0, *range(2, 11))]
    assert {(c.before, c.after) for c in found.changes} == {("powersave", "performance")}


def test_already_so() -> None:
    found = one("governor", governors("performance", "performance"))
    assert found.state == "good" and found.changes == ()


def test_not_here() -> None:
    assert one("governor", {}).state == "not here"
    assert one("governor", governors("userspace", offered="userspace ondemand")).state == "not here"


def test_read_only_says_where_to_set_it() -> None:
    current = {NUMA: "1\n"}
    found = one("numa_balancing", current, read_only=frozenset(current))
    assert found.state == "not here" and found.changes == ()
    assert (found.current, found.recommended) == ("1", "0")
    assert "on the host" in found.why.en and "宿主机" in found.why.zh
    caged = machine()
    caged = replace(caged, system=replace(caged.system, container="docker"))
    assert "docker" in one("numa_balancing", current, caged, read_only=frozenset(current)).why.en


def test_read_only_and_right_is_right() -> None:
    assert one("numa_balancing", {NUMA: "0\n"}, read_only=frozenset({NUMA})).state == "good"


@pytest.mark.parametrize("text", ["", "\n", "what ever", "1 2", "\x00", "-1", "٣", "9" * 5000])
def test_a_value_that_is_none_is_unknown_and_never_changed(text: str) -> None:
    found = one("numa_balancing", {NUMA: text})
    assert found.state == "unknown" and found.current is None and found.changes == ()


@pytest.mark.parametrize(
    ("nodes", "value", "state"),
    [(1, "1", "no matter"), (2, "1", "change"), (4, "1", "change"), (2, "0", "good"),
     (2, "2", "good")],
)  # fmt: skip
def test_numa_balancing(nodes: int, value: str, state: str) -> None:
    assert one("numa_balancing", {NUMA: value}, machine(nodes=nodes)).state == state


@pytest.mark.parametrize(("nodes", "state"), [(1, "no matter"), (2, "change")])
def test_zone_reclaim(nodes: int, state: str) -> None:
    assert one("zone_reclaim", {ZONE: "1"}, machine(nodes=nodes)).state == state


def test_nodes_without_memory_are_none_and_unknown_nodes_are_unknown() -> None:
    two = machine(nodes=2)
    empty = replace(two.nodes[1], memory_total_bytes=0)
    assert one("zone_reclaim", {ZONE: "1"}, replace(two, nodes=(two.nodes[0], empty))).state == (
        "no matter"
    )
    assert one("zone_reclaim", {ZONE: "1"}, replace(two, nodes=())).state == "unknown"


@pytest.mark.parametrize(
    ("swap_bytes", "value", "state"),
    [(0, "60", "no matter"), (1 << 30, "60", "change"), (1 << 30, "10", "good"),
     (1 << 30, "1", "good"), (1 << 30, "200", "change"), (None, "60", "unknown")],
)  # fmt: skip
def test_swappiness(swap_bytes: int | None, value: str, state: str) -> None:
    assert one("swappiness", {SWAPPINESS: value}, machine(swap_bytes=swap_bytes)).state == state


@pytest.mark.parametrize(
    ("glibc", "now", "state", "best"),
    [("2.36", "never", "change", "madvise"), ("2.36", "madvise", "good", "madvise"),
     ("2.36", "always", "good", "madvise"), ("2.31", "madvise", "change", "always"),
     ("2.31", "always", "good", "always"), (None, "never", "change", "madvise"),
     ("odd", "never", "change", "always")],
)  # fmt: skip
def test_transparent_huge_pages(glibc: str | None, now: str, state: str, best: str) -> None:
    here = machine()
    here = replace(here, system=replace(here.system, glibc=glibc))
    text = "always madvise never".replace(now, f"[{now}]")
    found = one("thp", {THP: text}, here)
    assert (found.state, found.current, found.recommended) == (state, now, best)


def test_the_best_value_that_this_kernel_offers() -> None:
    old = machine()
    old = replace(old, system=replace(old.system, glibc="2.17"))
    assert one("thp_defrag", {DEFRAG: "always madvise [never]"}, old).recommended == "madvise"
    newer = {DEFRAG: "always defer defer+madvise madvise [never]"}
    assert one("thp_defrag", newer, old).recommended == "defer+madvise"


@pytest.mark.parametrize(
    ("reserved", "free", "state"),
    [
        ("0", 0, "no matter"),
        ("512", 512, "by hand"),
        ("512", 0, "no matter"),
        ("9", None, "unknown"),
    ],
)
def test_reserved_huge_pages_are_only_suggested(
    reserved: str, free: int | None, state: str
) -> None:
    here = machine()
    here = replace(here, memory=replace(here.memory, huge_pages_free=free))
    found = one("huge_pages", {HUGE: reserved}, here)
    assert found.state == state and found.changes == ()
    if state == "by hand":
        assert found.commands == ("sudo sysctl -w vm.nr_hugepages=0",)


@pytest.mark.parametrize(
    ("limit", "swap_bytes", "state"),
    [("8388608", 1 << 30, "by hand"), ("unlimited", 1 << 30, "good"), ("8388608", 0, "no matter"),
     (str(64 << 30), 1 << 30, "good")],
)  # fmt: skip
def test_lockable_memory(limit: str, swap_bytes: int, state: str) -> None:
    text = (
        f"Limit  Soft Limit  Hard Limit  Units\nMax locked memory         {limit}  {limit}  bytes\n"
    )
    found = one("memlock", {LIMITS: text}, machine(swap_bytes=swap_bytes))
    assert found.state == state and found.changes == ()
    if state == "by hand":
        assert found.current == "8.00 MiB"
        assert any("LimitMEMLOCK=infinity" in line for line in found.commands)


def test_gpu_settings_are_only_suggested() -> None:
    gpus = (
        replace(builders.gpu(0), persistence=True),
        replace(builders.gpu(1), persistence=False, power_limit_w=150.0),
    )
    here = machine(gpus=gpus)
    persistence, power = one("persistence", {}, here), one("power_limit", {}, here)
    assert persistence.state == power.state == "by hand"
    assert persistence.current == "on (1), off (1)"
    assert persistence.commands == ("sudo nvidia-smi -i 1 -pm 1",)
    assert power.commands == ("sudo nvidia-smi -i 1 -pl 250",)
    assert persistence.changes == power.changes == ()


def test_gpus_that_are_right_silent_or_absent() -> None:
    right = machine(gpus=(replace(builders.gpu(), persistence=True),))
    assert one("persistence", {}, right).state == one("power_limit", {}, right).state == "good"
    silent = machine(gpus=(replace(builders.gpu(), power_limit_default_w=None),))
    assert one("persistence", {}, silent).state == one("power_limit", {}, silent).state == "unknown"
    assert one("persistence", {}).state == one("power_limit", {}).state == "not here"
    above = machine(gpus=(replace(builders.gpu(), power_limit_w=300.0),))
    assert one("power_limit", {}, above).state == "good"


def test_the_governor_comes_before_the_preference_that_it_blocks() -> None:
    names = [advice.knob for advice in advise(machine(), {})]
    assert names.index("governor") < names.index("energy")


def test_a_bare_number_is_the_same_preference() -> None:
    path = POLICY.format(0, "energy_performance_preference")
    assert one("energy", {path: "0\n"}).state == "good"
    assert one("energy", {path: "128\n"}).state == "change"
