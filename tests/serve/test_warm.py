"""Templates come into the slots when nobody asks, from disk where they are, and give way."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from slots_engine import SlotsEngine, slots_engine

from workhorse.run.address import Address
from workhorse.serve import warm
from workhorse.serve.activity import Activity
from workhorse.serve.kept_states import KeptStates
from workhorse.serve.templates import Ledger, Tally, Template
from workhorse.serve.warm import Warmer

PATIENCE_S = 120.0
A = Template("a", None, (("system", "Be brief."),), "", True)
B = Template("b", None, (("system", "Be kind, and long."),), "", True)
TEXT_A, TEXT_B = "system:Be brief.|user:", "system:Be kind, and long.|user:"


class Set:
    """A warmer with everything around it; `run` starts its task, as the service does."""

    def __init__(self, engine: SlotsEngine, folder: Path, *templates: Template) -> None:
        self.engine = engine
        self.activity = Activity()
        self.ledger = Ledger(templates)
        self.states = KeptStates(folder, 10**6)
        self.warmer = Warmer(
            "m",
            templates,
            self._address,
            self.activity,
            self.ledger,
            setup="x",
            states=self.states,
            prompt_cache=True,
            quiet_s=0.0,
        )

    async def _address(self, _: float) -> Address:
        return Address(self.engine.url)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.warmer.started(Address(self.engine.url))
        task = asyncio.create_task(self.warmer.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def ready(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.warmer.ready.wait()

    def tally(self, template: Template) -> Tally:
        return self.ledger.of(template, "m")

    def held(self) -> list[str]:
        return [self.engine.text(number) for number in range(len(self.engine.slots))]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SlotsEngine]:
    KeptStates(tmp_path, 10**6).prepare()
    async with slots_engine(tmp_path) as running:
        yield running


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - several tasks and an engine have to go on
            await asyncio.sleep(0.002)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes from disk may take as long as this machine needs."""
    monkeypatch.setattr(warm, "RESTORE_BUDGET_S", PATIENCE_S)


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def test_each_is_computed_once_and_every_slot_gets_one(
    engine: SlotsEngine, tmp_path: Path
) -> None:
    made = Set(engine, tmp_path, A, B)
    async with made.running():
        await made.ready()
    assert made.held() == [TEXT_A, TEXT_B, TEXT_A, TEXT_B]
    computed = [tokens for _, tokens in engine.prefills if tokens > 1]
    assert computed == [len(TEXT_A) + 1, len(TEXT_B) + 1]
    assert len(files(tmp_path)) == 2
    assert [(one.state, one.on_disk, one.tokens) for one in made.ledger.tallies()] == [
        ("ready", True, len(TEXT_A) + 1),
        ("ready", True, len(TEXT_B) + 1),
    ]


async def test_a_new_engine_gets_them_from_disk_before_anybody_is_served(
    engine: SlotsEngine, tmp_path: Path
) -> None:
    before = Set(engine, tmp_path, A, B)
    async with before.running():
        await before.ready()
    async with slots_engine(tmp_path) as restarted:
        restarted.client_used(3, "golden prompt")  # the check of a new engine
        made = Set(restarted, tmp_path, A, B)
        await made.warmer.started(Address(restarted.url))
        assert made.held() == [TEXT_A, TEXT_B, TEXT_A, TEXT_B]
        assert restarted.prefills == []


async def test_a_damaged_file_is_never_given_to_the_engine(
    engine: SlotsEngine, tmp_path: Path
) -> None:
    before = Set(engine, tmp_path, A)
    async with before.running():
        await before.ready()
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    engine.restores.clear()
    made = Set(engine, tmp_path, A)
    await made.warmer.started(Address(engine.url))
    assert engine.restores == []
    assert not path.exists()


async def test_a_client_is_given_way_at_once_and_the_work_goes_on_later(
    engine: SlotsEngine, tmp_path: Path
) -> None:
    engine.may_compute.clear()
    made = Set(engine, tmp_path, A)
    async with made.running():
        await until(lambda: engine.looks)
        with made.activity.request():
            async with asyncio.timeout(PATIENCE_S):
                await engine.left.wait()
            await until(lambda: made.tally(A).state == "waiting")
            assert [path for path in files(tmp_path) if path.suffix != ".part"] == []
            engine.may_compute.set()
        await made.ready()
    assert made.tally(A).state == "ready"
    assert engine.prefills[0] == (0, len(TEXT_A) + 1 - (len(TEXT_A) + 1) // 2)


async def test_a_slot_that_a_client_has_used_is_left_alone(
    engine: SlotsEngine, tmp_path: Path
) -> None:
    made = Set(engine, tmp_path, A)
    async with made.running():
        await made.ready()
        engine.client_used(2, "somebody's conversation")
        engine.slots[1].tokens = []  # lost without any task
        restored = len(engine.restores)
        made.warmer.declare((A, B))
        await until(lambda: made.tally(B).state == "ready")
        await until(lambda: len(engine.restores) > restored + 1)
    assert engine.text(2) == "somebody's conversation"


async def test_what_was_crowded_out_gets_the_slot_that_rested_longest(
    engine: SlotsEngine, tmp_path: Path
) -> None:
    made = Set(engine, tmp_path, A)
    async with made.running():
        await made.ready()
        with made.activity.request():
            await asyncio.sleep(0)
            for slot in (1, 0, 2, 3):
                engine.client_used(slot, f"conversation {slot}")
                made.ledger.answered("m", b'[{"role":"user","content":"x"}]', 0)
        await until(lambda: engine.text(1) == TEXT_A)
    assert "conversation 1" in ["".join(map(chr, one[1:])) for one in engine.prompt_cache]
    assert made.held()[2:] == ["conversation 2", "conversation 3"]


async def test_templates_beyond_the_slots_wait_in_the_prompt_cache(tmp_path: Path) -> None:
    async with slots_engine(tmp_path, slots=1) as engine:
        made = Set(engine, tmp_path, A, B)
        async with made.running():
            await made.ready()
        assert made.held() == [TEXT_A]
        assert [1, *map(ord, TEXT_B)] in engine.prompt_cache
        assert made.tally(B).state == "ready"


async def test_an_engine_that_cannot_save_is_filled_all_the_same(
    engine: SlotsEngine, tmp_path: Path
) -> None:
    engine.can_save = False
    made = Set(engine, tmp_path, A)
    async with made.running():
        await made.ready()
    assert made.held() == [TEXT_A] * 4
    assert not made.tally(A).on_disk
    assert files(tmp_path) == []


async def test_a_state_that_does_not_restore_is_not_kept(
    engine: SlotsEngine, tmp_path: Path
) -> None:
    engine.restores_nothing = True
    made = Set(engine, tmp_path, A)
    async with made.running():
        await made.ready()
    assert made.held() == [TEXT_A] * 4
    assert files(tmp_path) == []


async def test_somebody_elses_tokens_in_a_saved_slot_are_not_kept(
    engine: SlotsEngine, tmp_path: Path
) -> None:
    engine.saves_instead = [1, 2, 3]
    made = Set(engine, tmp_path, A)
    async with made.running():
        await made.ready()
    assert files(tmp_path) == []


async def test_messages_that_the_chat_template_refuses_are_told(
    engine: SlotsEngine, tmp_path: Path
) -> None:
    odd = Template("odd", None, (("developer", "x"),), "", True)
    made = Set(engine, tmp_path, odd, A)
    async with made.running():
        await made.ready()
    assert made.tally(odd).state == "refused"
    assert "no such role" in (made.tally(odd).why or "")
    assert made.held() == [TEXT_A] * 4


async def test_our_own_use_of_slots_is_no_clients(engine: SlotsEngine, tmp_path: Path) -> None:
    made = Set(engine, tmp_path, A)
    async with made.running():
        await made.ready()
        async with made.warmer.own_use():
            engine.client_used(0, "a measurement's prompt")
        await until(lambda: engine.text(0) == TEXT_A)


async def test_a_chat_template_that_writes_the_date_is_computed_anew_the_next_day(
    engine: SlotsEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "RENDER_AGAIN_S", 0.01)
    engine.today = "30 November|"
    made = Set(engine, tmp_path, A)
    async with made.running():
        await made.ready()
        assert made.held() == [f"30 November|{TEXT_A}"] * 4
        engine.today = "1 December|"
        await until(lambda: made.held() == [f"1 December|{TEXT_A}"] * 4)
