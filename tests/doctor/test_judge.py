"""The verdict as a whole: order, folding, what is well, what was not looked at."""

import os
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import test_rules_cards
import test_rules_memory
from ailing import card, server, with_card, with_memory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import CUDA, EMBEDDED, machine, model
from workhorse.codec import from_json, to_json
from workhorse.doctor import judge as judge_module
from workhorse.doctor.folding import FOLDS, cards_of, fold
from workhorse.doctor.judge import UNCHECKED, judge
from workhorse.knowledge.findings import wordings
from workhorse.knowledge.health import link_bytes_per_s, throttles
from workhorse.knowledge.tables import table
from workhorse.knowledge.xids import xid_meanings
from workhorse.machine.probe import probe
from workhorse.records import Cpu, Finding, Gpu, Limits, Machine, Memory, System, Verdict
from workhorse.text import Text
from workhorse.units import GIB

CAPTURES = Path(__file__).parent.parent / "captures"
DOCTOR = Path(judge_module.__file__).parent
GOLDENS = Path(__file__).parent / "goldens"
CAPTURED = sorted(
    str(path.relative_to(CAPTURES))
    for path in (*CAPTURES.glob("*.json"), *CAPTURES.glob("texts/*"))
    if path.suffix != ".md"
)


@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_machine_gives_its_golden(name: str) -> None:
    verdict = judge(probe(CAPTURES / name))
    golden = GOLDENS / f"{Path(name).stem}.json"
    if os.environ.get("WORKHORSE_WRITE_GOLDENS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(to_json(verdict) + "\n", encoding="utf-8")
    assert verdict == from_json(Verdict, golden.read_bytes(), what=golden.name)


def test_every_wording_has_a_machine_that_needs_it() -> None:
    tried = {rule[0] for rule in (*test_rules_memory.RULES, *test_rules_cards.RULES)}
    assert wordings().keys() - tried == set()


def test_what_blocks_comes_first_then_what_costs_most() -> None:
    ill = with_memory(
        thp="never", ecc_uncorrected=1, memlock_bytes=65536, swap_total_bytes=1, swap_free_bytes=1
    )
    ill = replace(
        ill,
        cpu=replace(ill.cpu, flags=("avx", "sse4_2")),
        memory=replace(ill.memory, channels_in_use=(2, 2)),
    )
    codes = [f.code for f in judge(ill).findings if not f.code.startswith(("good.", UNCHECKED))]
    assert codes == [
        "cpu.no-avx2",
        "memory.channels-empty",
        "kernel.thp-never",
        "memory.errors-uncorrected",
        "kernel.memlock-small",
    ]


def test_a_subject_is_well_only_without_a_warning() -> None:
    codes = {f.code for f in judge(with_card(power_limit_w=150.0)).findings}
    assert "good.cards" not in codes and {"good.links", "good.card-memory"} <= codes


def test_what_was_not_looked_at_stands_last_and_claims_nothing() -> None:
    blind = replace(server(), events=None)
    blind = replace(blind, memory=replace(blind.memory, dimms=None, channels_in_use=None))
    findings = judge(blind).findings
    last = [f for f in findings if f.code.startswith(UNCHECKED)]
    assert findings[-len(last) :] == tuple(last)
    assert {f.code for f in last} == {"unchecked.memory", "unchecked.events"}
    assert all(f.level == "note" and f.share_lost is None for f in last)


def test_doubts_of_the_probe_are_what_was_not_looked_at() -> None:
    doubt = Text("It could not be read.", "无法读取。")
    findings = judge(server(doubts=(doubt, doubt))).findings
    assert [f.seen for f in findings if f.code == "unchecked.doubt"] == [doubt]


def test_a_fold_keeps_evidence_level_and_loss() -> None:
    def finding(code: str, level: Any, evidence: str, lost: float | None) -> Finding:
        text = Text(code, code)
        return Finding(code, level, text, text, text, "test", None, (evidence,), lost)

    root = finding("link.width-lost", "note", "0000:18:00.0 x1", None)
    same = finding("link.slow", "warning", "0000:18:00.0 slow", 0.3)
    other = finding("link.slow", "warning", "0000:3b:00.0 slow", None)
    folded, left = fold((root, same, other))
    assert left is other and folded.code == "link.width-lost"
    assert folded.level == "warning" and folded.share_lost == 0.3
    assert folded.evidence == ("0000:18:00.0 x1", "0000:18:00.0 slow")
    assert folded.consequences == (same.seen,)


def test_cards_are_the_same_however_long_their_domain_is_written() -> None:
    text = Text("", "")
    one, two = (
        Finding("x", "note", text, text, text, "", None, (line,))
        for line in ("00000000:18:00.0 now", "at 0000:18:00.0")
    )
    assert cards_of(one) == cards_of(two) != frozenset()


def test_no_fold_is_its_own_consequence() -> None:
    codes = [*wordings(), *(f"xid.{number}" for number in xid_meanings()), "nvrm.bus"]
    for rule in FOLDS:
        both = [c for c in codes if re.fullmatch(rule.root, c) and re.fullmatch(rule.follows, c)]
        assert both == [], rule


def test_every_threshold_is_used() -> None:
    names = [row["name"] for row in table("health")["threshold"]]
    code = "".join(path.read_text(encoding="utf-8") for path in DOCTOR.glob("*.py"))
    assert [name for name in names if f'threshold("{name}")' not in code] == []
    assert len(names) == len(set(names))


def test_knowledge_is_whole() -> None:
    assert link_bytes_per_s(3, 16) == pytest.approx(15.76e9)
    assert link_bytes_per_s(None, 16) is None and link_bytes_per_s(99, 16) is None
    assert all(row.code in wordings() for row in throttles().values() if row.code)
    wanted = {13, 31, 43, 45, 48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140}
    assert wanted <= xid_meanings().keys()


# --- with a model ---------------------------------------------------------------------------------


def test_a_model_that_fits_is_said_to_fit() -> None:
    verdict = judge(machine(), model(), EMBEDDED)
    told = [f for f in verdict.findings if f.code == "good.model"]
    assert len(told) == 1 and "tiny" in told[0].seen.en and not verdict.blocked


def test_a_model_that_does_not_fit_blocks() -> None:
    verdict = judge(machine(ram_bytes=1 * GIB), model(layers=64, embedding=4096), EMBEDDED)
    assert verdict.blocked and verdict.findings[0].code == "memory.does_not_fit"


def test_missing_instructions_are_one_finding_that_blocks() -> None:
    old = machine(flags=("avx", "sse4_2"))
    codes = [f.code for f in judge(old, model(), EMBEDDED).findings if f.level == "blocker"]
    assert codes == ["cpu.no-avx2"]


def test_the_plans_doubts_are_not_told_twice() -> None:
    doubt = Text("It could not be read.", "无法读取。")
    findings = judge(replace(machine(), doubts=(doubt,)), model(), CUDA).findings
    assert [f.code for f in findings if f.seen == doubt] == ["unchecked.doubt"]


# --- machines of which anything may be unknown ----------------------------------------------------

NEEDED = {"index", "name", "architecture", "flags", "cores", "cpus", "copies", "bandwidths"}


def holes(record: Any) -> st.SearchStrategy[Any]:
    """The record with any of its optional facts unknown."""
    names = [field.name for field in fields(record) if field.name not in NEEDED]
    return st.sets(st.sampled_from(names)).map(
        lambda unknown: replace(record, **dict.fromkeys(unknown))
    )


EXTREME = card(
    pcie_width_now=1, pcie_replays=10**9, temperature_c=120, power_limit_w=1.0, bar1_bytes=1,
    throttle_reasons=("HW slowdown", "0x4000"), compute_mode="prohibited", mig=True,
    memory_free_bytes=0,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    gpus=st.lists(holes(EXTREME) | holes(card(1)), max_size=3),
    memory=holes(with_memory(memlock_bytes=1, thp="never").memory),
    cpu=holes(server().cpu),
    limits=holes(Limits((0, 1), 0.5, 1, 1)),
    system=holes(server().system),
    host=holes(server()).filter(lambda m: m.memory is not None),
)
def test_whatever_is_unknown_there_is_a_verdict(
    gpus: list[Gpu], memory: Memory, cpu: Cpu, limits: Limits, system: System, host: Machine
) -> None:
    base = server()
    ill = replace(
        base,
        gpus=tuple(replace(gpu, index=index) for index, gpu in enumerate(gpus)),
        memory=memory,
        cpu=cpu,
        limits=limits,
        system=system,
        driver=host.driver,
        events=host.events,
        busy_cpus=host.busy_cpus,
    )
    verdict = judge(ill)
    assert from_json(Verdict, to_json(verdict), what="it") == verdict
    for finding in verdict.findings:
        assert finding.share_lost is None or 0 <= finding.share_lost <= 1
        assert "None" not in finding.seen.en + finding.seen.zh
