"""`fleet up` from what is offered to its end, and the commands that ask it; Ray is a stand-in."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from stand_in_fleet import (
    PATIENCE_S,
    Listener,
    StandInCluster,
    StandInProxy,
    StandInServe,
    node,
    until,
)
from test_front import ask

sys.path.append(str(Path(__file__).parent.parent / "models"))

from gguf_builder import llama

from workhorse.cli import main
from workhorse.config import Places
from workhorse.errors import EXIT_GOOD, EXIT_NO, EXIT_USAGE
from workhorse.fleet.member import Member
from workhorse.fleet.outside import drain, fleet_of, running_fleet
from workhorse.fleet.ray_start import Ports
from workhorse.fleet.secret import new_token, replica_key, write_token
from workhorse.fleet.spec import ReplicaSpec
from workhorse.fleet.up import FleetAsk, FleetUp, bounds_of
from workhorse.run.live_processes import LiveProcess


class KeyedServe(StandInServe):
    """Its replicas ask for the key of this fleet."""

    def put(self, spec: ReplicaSpec) -> None:
        super().put(spec)
        for one in self.replicas.values():
            one.key = self.key

    key = ""


@dataclass
class Scene:
    """One fleet, and `fleet up` on its head."""

    home: Path
    job: FleetUp
    listener: Listener
    serve: KeyedServe
    cluster: StandInCluster


@asynccontextmanager
async def scene(home: Path, *, engine: str | None = None) -> AsyncIterator[Scene]:
    model = llama().write(home / "small.gguf")
    token, proxy = new_token(), StandInProxy({})
    write_token(home / "token", token)
    await proxy.start()
    serve, listener = KeyedServe(proxy.replicas), Listener()
    serve.key = replica_key(token)
    cluster = StandInCluster(node("head", head=True, **{"workhorse.http_port": str(proxy.port)}))
    member = Member(
        birthplace="here",
        keeper=LiveProcess(1, 1, ""),
        marker="m",
        name="head",
        address="127.0.0.1:6379",
        node_address="127.0.0.1",
        head=True,
        token_file=str(home / "token"),
        temp_dir=str(home),
        ports=replace(Ports(), http=proxy.port),
        started_unix_s=0.0,
    )
    asked = FleetAsk(files=(str(model),), engine=engine, port=0, skip_golden=True)
    job = FleetUp(asked, Places(home), member, cluster, serve, listener)
    try:
        yield Scene(home, job, listener, serve, cluster)
    finally:
        await proxy.stop()


async def test_from_the_file_to_the_answer_and_back(tmp_path: Path) -> None:
    async with scene(tmp_path) as fleet:
        running = asyncio.create_task(fleet.job.serve())
        try:
            await until(lambda: fleet.listener.url or running.done())
            assert not running.done(), running.exception()
            (plan,) = fleet.listener.plans
            (spec,) = plan.replicas
            assert (spec.name, spec.model_name, spec.node_id) == ("head-cpu", "small", "head-1")
            assert spec.weights is not None
            assert spec.weights.file_name == "small.gguf"
            assert fleet.serve.started_at == fleet.job.member.ports.http
            status, text = await ask(str(fleet.listener.url))
            assert (status, text) == (200, "head-cpu")

            file = await asyncio.to_thread(running_fleet, Places(tmp_path))
            assert file is not None
            found = await asyncio.to_thread(fleet_of, file)
            assert found is not None
            assert [(one.name, one.state, one.node) for one in found.replicas] == [
                ("head-cpu", "ready", "head")
            ]
            said = await asyncio.to_thread(lambda: list(drain(file, "nobody", undo=False)))
            assert "No node of this fleet" in said[-1]["error"]["what"]["en"]
            said = await asyncio.to_thread(lambda: list(drain(file, "head", undo=False)))
            assert said[-1] == {"done": True}
            assert fleet.serve.told == {}
            await asyncio.to_thread(lambda: list(drain(file, "head", undo=True)))
            await until(lambda: "head-cpu" in fleet.serve.told)
        finally:
            running.cancel()
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(running, return_exceptions=True)
        assert fleet.serve.told == {}
        assert await asyncio.to_thread(running_fleet, Places(tmp_path)) is None


async def test_a_box_that_comes_back_goes_on_with_its_plan(tmp_path: Path) -> None:
    """Ray gives it another id then."""
    async with scene(tmp_path) as fleet:
        running = asyncio.create_task(fleet.job.serve())
        try:
            await until(lambda: fleet.listener.url or running.done())
            before = fleet.serve.told["head-cpu"]
            fleet.cluster.change("head-1", id="head-2")
            await until(
                lambda: (now := fleet.serve.told.get("head-cpu")) and now.node_id == "head-2"
            )
            assert fleet.serve.told["head-cpu"].plan == before.plan
            assert fleet.cluster.asked == ["head-1"]
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_plan_alone_starts_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as fleet:
        plan = await fleet.job.plan()
        assert [one.name for one in plan.replicas] == ["head-cpu"]
        assert (fleet.serve.started_at, fleet.serve.told) == (None, {})


async def test_a_fleet_that_can_run_nothing_says_so_and_ends(tmp_path: Path) -> None:
    async with scene(tmp_path, engine="no-such-engine") as fleet:
        assert await fleet.job.serve() == EXIT_NO
        (plan,) = fleet.listener.plans
        assert [one.node for one in plan.not_used] == ["head"]


async def test_bounds_follow_what_was_asked(tmp_path: Path) -> None:
    async with scene(tmp_path) as fleet:
        plan = await fleet.job.plan()
        plan = replace(plan, replicas=plan.replicas * 3, spare=plan.replicas)
        asked = fleet.job.ask
        for changes, least, most in (
            ({}, 4, 4),
            ({"replicas": 2}, 2, 2),
            ({"least": 2}, 2, 4),
            ({"most": 3}, 1, 3),
            ({"least": 5, "most": 6}, 5, 6),
            ({"users": 1}, 1, 1),
            ({"users": 1000, "most": 3}, 3, 3),
        ):
            bounds = bounds_of(replace(asked, **changes), plan)
            assert (bounds.least, bounds.most) == (least, most), changes


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--replicas", "none"], "no number of replicas"),
        (["--replicas", "0"], "no number of replicas"),
        (["--replicas", "2", "--max", "3"], "fixes the number"),
        (["--min", "3", "--max", "2"], "is above"),
    ],
)
def test_what_contradicts_itself_is_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", "up", *words]) == EXIT_USAGE
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("words", [["up"], ["status"], ["drain", "a"]])
def test_a_machine_of_no_fleet_is_told_what_to_do(
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path))
    assert main(["fleet", *words]) not in (EXIT_GOOD, EXIT_USAGE)
    assert "workhorse fleet init" in capsys.readouterr().err
