"""Which engines get templates, and what a reload makes of them; the fake engine takes none."""

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

sys.path.append(str(Path(__file__).parent.parent / "serve"))

from service_inside import until
from service_process import PATIENCE_S
from slots_engine import SlotsEngine, slots_engine

import builders
from workhorse.config import Places
from workhorse.engines.find import embedded_build
from workhorse.errors import AppError
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import Plan
from workhorse.run.address import Address
from workhorse.serve.activity import Activity
from workhorse.settings import Settings
from workhorse.up.warmth import Warmth, model_files

DECLARED = '[[template]]\nname = "a"\nsystem = "Be brief."\n'


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes from disk may take as long as this machine needs."""
    monkeypatch.setattr("workhorse.serve.warm.RESTORE_BUDGET_S", PATIENCE_S)


def settings(toml: str) -> Settings:
    return msgspec.toml.decode(toml, type=Settings)


def warmth(folder: Path, toml: str) -> Warmth:
    return Warmth(settings(toml), folder / "settings.toml", Places(folder), Activity())


@pytest.fixture
def plan() -> Plan:
    return make_plan(builders.machine(), builders.model(), embedded_build(), Wish())


def test_an_engine_gets_a_folder_only_for_templates_that_it_can_keep(
    tmp_path: Path, plan: Plan
) -> None:
    def folder(toml: str, plan: Plan = plan) -> str | None:
        return warmth(tmp_path, toml).prepare(plan).states_dir

    assert folder("") is None
    assert folder(f"{DECLARED}keep = false") is None
    assert folder(f'{DECLARED}model = "another"') is None
    assert folder(DECLARED, replace(plan, engine=replace(plan.engine, knows=("--model",)))) is None
    assert not (tmp_path / "states").exists()
    assert folder(DECLARED) == str(tmp_path / "states")
    assert folder(f'{DECLARED}model = "{plan.model_name}"') == str(tmp_path / "states")


def test_a_folder_that_cannot_be_made_costs_the_disk_copy_alone(tmp_path: Path, plan: Plan) -> None:
    (tmp_path / "states").write_text("in the way")
    assert warmth(tmp_path, DECLARED).prepare(plan).states_dir is None


def test_a_reload_plans_with_the_new_templates_and_refuses_wrong_ones(
    tmp_path: Path, plan: Plan
) -> None:
    made = warmth(tmp_path, "")
    with pytest.raises(AppError, match="no text"):
        made.plan_with(settings('[[template]]\nname = "empty"\n'))
    assert made.prepare(plan).states_dir is None
    made.plan_with(settings(DECLARED))
    assert made.prepare(plan).states_dir is not None
    assert made.templates == ()
    made.apply(settings(DECLARED))
    assert [one.name for one in made.templates] == ["a"]


def test_a_split_model_is_known_by_all_its_parts(tmp_path: Path) -> None:
    parts = [tmp_path / f"big-0000{n}-of-00002.gguf" for n in (1, 2)]
    for path in (*parts, tmp_path / "big-00001-of-00003.gguf", tmp_path / "one.gguf"):
        path.touch()
    assert model_files(parts[0]) == tuple(parts)
    assert model_files(tmp_path / "one.gguf") == (tmp_path / "one.gguf",)


class Place:
    """An engine's place behind the gateway: what starts in it may be another each time."""

    state, restarts = "ready", 0

    def __init__(self, engine: SlotsEngine) -> None:
        self.engine = engine

    async def address(self, _: float) -> Address:
        return Address(self.engine.url)


async def test_an_engine_with_other_weights_gets_no_state_of_the_ones_before(
    tmp_path: Path, plan: Plan
) -> None:
    model, states = tmp_path / "m.gguf", tmp_path / "states"
    model.write_bytes(b"weights")
    made = warmth(tmp_path, DECLARED)
    plan = replace(made.prepare(plan), model_path=str(model), prompt_cache_bytes=1)
    async with (
        slots_engine(states) as first,
        slots_engine(states) as second,
        slots_engine(states) as other,
    ):
        place = Place(first)
        await made.started(place, plan, Address(first.url))
        await until(lambda: list(states.glob("*.state")))
        place.engine = second
        await made.started(place, plan, Address(second.url))  # the engine died and came back
        assert second.restores != []
        before = {path.name for path in states.glob("*.state")}
        model.write_bytes(b"other weights")
        place.engine = other
        await made.started(place, plan, Address(other.url))
        await until(lambda: other.restores)  # what it has computed itself, to prove it
        assert before.isdisjoint(other.restores)
        await made.stop()
