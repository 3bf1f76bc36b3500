"""The tuned plan: used where it holds, a note where it does not, taken back when asked."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_bed import fake_server, given

from workhorse.plan.wish import Wish
from workhorse.plan.words import SETTINGS
from workhorse.records import Machine, Plan
from workhorse.tune.fingerprint import build_key, fingerprint, model_key
from workhorse.tune.given import Given
from workhorse.tune.kept import Kept, KeptPlans, with_kept
from workhorse.tune.tell import VARIABLES
from workhorse.tune.trial import Change
from workhorse.units import GIB

WISH = Wish(context_tokens=2048)
CHANGES = (Change("threads", "1"), Change("spin", "default"), Change("kv", "q8_0"))


@pytest.fixture
def wanted(tmp_path: Path) -> Given:
    return given(fake_server(tmp_path))


def kept_for(wanted: Given) -> Kept:
    return Kept(
        "2026-11-30T12:00:00+00:00", fingerprint(wanted.machine), model_key(wanted.model), "decode",
        build_key(wanted.plan.engine), CHANGES, 1.25, (1.2, 1.3), 125.0, 120.0, 130.0, 768, 1,
    )  # fmt: skip


def planned(path: Path, wanted: Given, wish: Wish = WISH) -> Plan:
    return with_kept(path, wanted.machine, wanted.model, wanted.plan, wish)


def test_it_is_used_with_its_reason_and_its_measured_speed(tmp_path: Path, wanted: Given) -> None:
    path = tmp_path / "tuning.sqlite"
    assert planned(path, wanted) == wanted.plan
    assert not path.exists()
    KeptPlans(path).put(kept_for(wanted))
    plan = planned(path, wanted)
    assert (plan.threads, plan.spin, plan.kv_type_k) == (1, "default", "q8_0")
    reasons = {reason.setting: reason for reason in plan.reasons}
    assert reasons["tuned"].value == "+25 %"
    assert "2026-11-30" in reasons["tuned"].because.en
    assert reasons["threads"].value == "1"
    assert len(reasons) == len(plan.reasons)  # one reason a setting: the old ones have gone
    decode = plan.forecast.decode_tokens_per_s
    assert decode is not None
    assert (decode.value, decode.basis) == (125.0, "measured")
    # A smaller cache takes less: the budget is that of the tuned plan.
    assert sum(x.n_bytes for x in plan.budget) < sum(x.n_bytes for x in wanted.plan.budget)


def test_every_reason_has_a_name_to_be_shown() -> None:
    assert {"tuned", *VARIABLES} <= SETTINGS.keys()


def with_more_memory(machine: Machine) -> Machine:
    return replace(machine, memory=replace(machine.memory, total_bytes=64 * GIB))


def with_other_cpus(machine: Machine) -> Machine:
    return replace(machine, limits=replace(machine.limits, cpus=(machine.limits.cpus[0],)))


@pytest.mark.parametrize("change", [with_more_memory, with_other_cpus])
def test_on_another_machine_it_is_a_note(
    tmp_path: Path, wanted: Given, change: Callable[[Machine], Machine]
) -> None:
    path = tmp_path / "tuning.sqlite"
    KeptPlans(path).put(kept_for(wanted))
    plan = planned(path, replace(wanted, machine=change(wanted.machine)))
    assert plan.threads == wanted.plan.threads
    (note,) = [f for f in plan.verdict.findings if f.code == "tune.machine_changed"]
    assert (note.level, "→" in note.seen.en) == ("note", True)
    assert not plan.verdict.blocked


def test_with_another_build_it_is_a_note(tmp_path: Path, wanted: Given) -> None:
    path = tmp_path / "tuning.sqlite"
    KeptPlans(path).put(replace(kept_for(wanted), build="llama.cpp binary llama-server 0"))
    assert [f.code for f in planned(path, wanted).verdict.findings][-1] == "tune.build_changed"


def test_a_history_that_cannot_be_read_does_not_stop_a_plan(tmp_path: Path, wanted: Given) -> None:
    path = tmp_path / "tuning.sqlite"
    path.write_bytes(b"not a database at all" * 100)
    assert [f.code for f in planned(path, wanted).verdict.findings][-1] == "tune.history_unreadable"


def test_it_is_for_one_use(tmp_path: Path, wanted: Given) -> None:
    path = tmp_path / "tuning.sqlite"
    KeptPlans(path).put(kept_for(wanted))
    for purpose, threads in (("chat", 1), ("batch", wanted.plan.threads)):
        wish = replace(WISH, purpose=purpose)
        assert planned(path, wanted, wish).threads == threads


def test_slots_that_were_asked_for_stay(tmp_path: Path, wanted: Given) -> None:
    path = tmp_path / "tuning.sqlite"
    KeptPlans(path).put(replace(kept_for(wanted), changes=(Change("slots", "4"), *CHANGES)))
    assert planned(path, wanted).slots == 4
    plan = planned(path, wanted, replace(WISH, slots=1))
    assert (plan.slots, plan.threads) == (1, 1)


def test_undone_the_one_before_comes_back(tmp_path: Path, wanted: Given) -> None:
    plans = KeptPlans(tmp_path / "tuning.sqlite")
    model = model_key(wanted.model)
    assert plans.undo(model, None, "2026-12-01") == 0
    plans.put(replace(kept_for(wanted), changes=CHANGES[:1]))
    plans.put(kept_for(wanted))
    assert plans.undo("another model", None, "2026-12-01") == 0
    assert plans.undo(model, "decode", "2026-12-01") == 1
    assert planned(plans.path, wanted).kv_type_k == wanted.plan.kv_type_k
    assert planned(plans.path, wanted).threads == 1
    assert plans.undo(model, None, "2026-12-01") == 1
    assert planned(plans.path, wanted) == wanted.plan
