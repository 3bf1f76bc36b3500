"""Copies of what a slot cannot roll back: as many as the memory left over holds."""

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import builders
from workhorse.engines.llamacpp import settings
from workhorse.machine.probe import probe
from workhorse.plan.checkpoints import SHARE, choose_checkpoints
from workhorse.plan.kept import CHECKPOINTS_A_SLOT, Layout, checkpoint_bytes
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import Plan, RecurrentState
from workhorse.units import GIB, MIB

CAPTURES = Path(__file__).parents[1] / "captures"
ENGINE = replace(builders.EMBEDDED, knows=(*builders.EMBEDDED.knows, "--ctx-checkpoints"))
LAYOUT = Layout(8192, 4)
RECURRENT = replace(builders.model(), recurrent=(RecurrentState(0, 50 * MIB),) * 3 + (None,))


def test_a_model_that_can_roll_back_needs_none() -> None:
    assert choose_checkpoints(builders.model(), LAYOUT, GIB).a_slot is None


def test_an_embedding_model_has_no_conversations() -> None:
    assert choose_checkpoints(replace(RECURRENT, pooling=True), LAYOUT, GIB).a_slot is None


def test_with_room_the_engines_default_holds() -> None:
    chosen = choose_checkpoints(RECURRENT, LAYOUT, 1000 * GIB)
    assert chosen.a_slot == CHECKPOINTS_A_SLOT
    assert sum(line.n_bytes for line in chosen.lines) == 32 * 4 * 150 * MIB


def test_nothing_left_means_none_and_no_line() -> None:
    for left in (0, -GIB, 600 * MIB):
        chosen = choose_checkpoints(RECURRENT, LAYOUT, left)
        assert (chosen.a_slot, chosen.lines) == (0, ())


@given(st.integers(0, 200 * GIB), st.integers(1, 16))
def test_they_never_take_more_than_their_share(left: int, slots: int) -> None:
    layout = replace(LAYOUT, slots=slots)
    chosen = choose_checkpoints(RECURRENT, layout, left)
    taken = sum(line.n_bytes for line in chosen.lines)
    assert taken == (chosen.a_slot or 0) * slots * checkpoint_bytes(RECURRENT, layout)
    assert taken <= left * SHARE


def plan_for(recurrent: bool) -> Plan:
    model = RECURRENT if recurrent else builders.model()
    return make_plan(probe(CAPTURES / "machine_a.json"), model, ENGINE, Wish())


def test_the_plan_tells_the_engine_how_many() -> None:
    plan = plan_for(recurrent=True)
    assert plan.context_checkpoints is not None
    line = next(line for line in plan.budget if line.item == "checkpoints")
    assert line.n_bytes > 0
    words = settings(plan, 8080, "127.0.0.1")
    assert words[words.index("--ctx-checkpoints") + 1] == str(plan.context_checkpoints)


def test_other_models_leave_the_engines_default() -> None:
    plan = plan_for(recurrent=False)
    assert plan.context_checkpoints is None
    assert "--ctx-checkpoints" not in settings(plan, 8080, "127.0.0.1")
