"""Which replicas there are: started, replaced, drained, removed, taken over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from stand_in_fleet import (
    PATIENCE_S,
    StandInCluster,
    StandInProxy,
    StandInReplica,
    StandInServe,
    front_of,
    node,
    spec,
    until,
)
from test_front import ask, ask_for_stream, hold

from workhorse.errors import AppError
from workhorse.fleet.cannot_start import CannotStart
from workhorse.fleet.deployed import DeploymentState
from workhorse.fleet.front import FleetFront
from workhorse.fleet.replicas import AWAY_S, Replicas
from workhorse.fleet.scale import Bounds, Scale
from workhorse.text import same

A, B = spec("a-cpu", "a-1"), spec("b-cpu", "b-1")


class Fleet:
    """A head and two nodes, a gateway, and what looks after the replicas."""

    def __init__(
        self, front: FleetFront, proxy: StandInProxy, serve: StandInServe, bounds: Bounds
    ) -> None:
        self.front, self.serve = front, serve
        labels = {"workhorse.http_port": str(proxy.port)}
        self.cluster = StandInCluster(node("head", head=True, **labels), node("a"), node("b"))
        self.said: list[str] = []
        self.replicas = Replicas(
            front,
            self.cluster,
            serve,
            Scale(bounds),
            lambda words: self.said.append(words.en),
            http_port=proxy.port,
        )
        self.replicas.offer((A, B))

    @property
    def ready(self) -> set[str]:
        found = self.front.replicas.values()
        return {one.spec.name for one in found if one.state == "ready" and not one.draining}

    async def come_to(self, *names: str) -> None:
        """Look until exactly these serve."""
        async with asyncio.timeout(PATIENCE_S):
            while self.ready != set(names) or set(self.front.replicas) != set(names):
                await self.replicas.look()
                await asyncio.sleep(0.05)


@asynccontextmanager
async def fleet_of(home: Path, *there: StandInReplica, most: int = 2) -> AsyncIterator[Fleet]:
    async with front_of(home) as (front, (proxy,)):
        proxy.replicas.update({one.name: one for one in there})
        serve = StandInServe(proxy.replicas)
        yield Fleet(front, proxy, serve, Bounds(most, most))


async def test_as_many_run_as_are_wanted_the_best_first(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, most=1) as fleet:
        await fleet.come_to("a-cpu")
        assert set(fleet.serve.told) == {"a-cpu"}
        fleet.replicas.scale.bounds = Bounds(2, 2)
        await fleet.come_to("a-cpu", "b-cpu")
        assert await ask(fleet.front.url) in ((200, "a-cpu"), (200, "b-cpu"))
        status = fleet.replicas.status()
        assert [(one.name, one.alive) for one in status.nodes] == [
            ("head", True),
            ("a", True),
            ("b", True),
        ]
        assert {(one.name, one.node, one.state) for one in status.replicas} == {
            ("a-cpu", "a", "ready"),
            ("b-cpu", "b", "ready"),
        }
        assert status.exit_code == 0


async def test_a_drained_node_ends_its_answers_first_and_gets_none_until_undone(
    tmp_path: Path,
) -> None:
    async with fleet_of(tmp_path) as fleet:
        await fleet.come_to("a-cpu", "b-cpu")
        holds = hold(fleet.serve.replicas["a-cpu"], fleet.serve.replicas["b-cpu"])
        asking = [asyncio.create_task(ask_for_stream(fleet.front.url)) for _ in range(2)]
        await until(lambda: holds[0].begun == holds[1].begun == 1)
        heard: list[str] = []
        draining = asyncio.create_task(
            fleet.replicas.drain("a", lambda words: heard.append(words.en))
        )
        await until(lambda: heard)
        assert heard == ["a-cpu: 1 running answer ends first"]
        more = asyncio.create_task(ask_for_stream(fleet.front.url))
        await until(lambda: holds[1].begun == 2)  # the drained one had a slot free, too
        assert fleet.serve.removed == []
        assert not draining.done()
        for one in holds:
            one.go.set()
        texts = await asyncio.gather(*asking, more)
        assert all("[DONE]" in text for text in texts)
        async with asyncio.timeout(PATIENCE_S):
            await draining
        assert fleet.serve.removed == ["a-cpu"]
        await fleet.come_to("b-cpu")
        await fleet.replicas.undo("a", lambda _: None)
        await fleet.come_to("a-cpu", "b-cpu")


async def test_a_node_that_nobody_knows_cannot_be_drained(tmp_path: Path) -> None:
    async with fleet_of(tmp_path) as fleet:
        await fleet.replicas.look()
        with pytest.raises(AppError, match="No node of this fleet is called 'c'") as error:
            await fleet.replicas.drain("c", lambda _: None)
        assert "head, a, b" in error.value.next_step.en


async def test_what_cannot_start_gives_its_place_to_another(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, most=1) as fleet:
        said = CannotStart(same("No memory is left."), same("Stop something."))
        fleet.serve.refused["a-cpu"] = DeploymentState("failed", "long words", "a-1", said)
        await fleet.come_to("b-cpu")
        assert "a-cpu: No memory is left." in fleet.said
        assert fleet.replicas.hopeless() is None


async def test_when_nothing_can_start_the_reason_is_told(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, most=1) as fleet:
        for name in ("a-cpu", "b-cpu"):
            fleet.serve.refused[name] = DeploymentState("failed", "Traceback\nno such card", None)
        async with asyncio.timeout(PATIENCE_S):
            while (why := fleet.replicas.hopeless()) is None:
                await fleet.replicas.look()
                await asyncio.sleep(0.05)
        assert "could not start: no such card" in why.what.en


async def test_the_replicas_of_a_lost_node_come_back_with_it(tmp_path: Path) -> None:
    """It is another node for Ray then, and gets a plan of its own."""
    async with fleet_of(tmp_path) as fleet:
        await fleet.come_to("a-cpu", "b-cpu")
        fleet.cluster.change("a-1", alive=False)
        await fleet.come_to("b-cpu")
        assert not any(one.alive for one in fleet.replicas.status().nodes if one.name == "a")
        back = node("a")
        fleet.cluster.found.append(type(back)(**{**_fields(back), "id": "a-2"}))
        fleet.replicas.offer((spec("a-cpu", "a-2"), B))
        await fleet.come_to("a-cpu", "b-cpu")
        assert fleet.serve.told["a-cpu"].node_id == "a-2"


def _fields(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in type(one).__slots__}


async def test_a_killed_service_s_replicas_go_on_under_the_next(tmp_path: Path) -> None:
    async with fleet_of(tmp_path) as fleet:
        for one in (A, spec("b-cpu", "b-1", model_name="another"), spec("old")):
            fleet.serve.put(one)
        before = fleet.serve.replicas["a-cpu"]
        await fleet.replicas.see()
        await fleet.replicas.take_over()
        assert set(fleet.serve.removed) == {"b-cpu", "old"}
        await fleet.come_to("a-cpu", "b-cpu")
        assert fleet.serve.replicas["a-cpu"] is before
        assert "a-cpu runs already" in fleet.said


async def test_the_last_that_writes_least_goes_and_only_when_it_is_empty(tmp_path: Path) -> None:
    async with fleet_of(tmp_path) as fleet:
        await fleet.come_to("a-cpu", "b-cpu")
        (held,) = hold(fleet.serve.replicas["b-cpu"])
        asking = [asyncio.create_task(ask_for_stream(fleet.front.url)) for _ in range(3)]
        await until(lambda: held.begun)
        fleet.replicas.scale.bounds = Bounds(1, 1)
        await fleet.come_to("b-cpu")  # it has something to do
        held.go.set()
        assert all("[DONE]" in text for text in await asyncio.gather(*asking))


async def test_the_number_follows_the_line(tmp_path: Path) -> None:
    """More while people wait, fewer once they have gone; nobody's answer is cut for it."""
    async with fleet_of(tmp_path) as fleet:
        fleet.replicas.scale = Scale(Bounds(1, 2), pressed_s=0.3, idle_s=0.3)
        await fleet.come_to("a-cpu")
        (held,) = hold(fleet.serve.replicas["a-cpu"])
        asking = [asyncio.create_task(ask_for_stream(fleet.front.url)) for _ in range(6)]
        await until(lambda: fleet.front.status().waiting == 4)
        await fleet.come_to("a-cpu", "b-cpu")
        await until(lambda: len(fleet.serve.replicas["b-cpu"].asked) == 4)
        held.go.set()
        assert all("[DONE]" in text for text in await asyncio.gather(*asking))
        async with asyncio.timeout(PATIENCE_S):
            while len(fleet.front.replicas) != 1:
                await fleet.replicas.look()
                await asyncio.sleep(0.05)
        assert len(fleet.serve.removed) == 1


async def test_one_that_stays_away_is_replaced_and_one_too_many_leaves(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, most=1) as fleet:
        await fleet.come_to("a-cpu")
        fleet.serve.replicas["a-cpu"].gone = True
        replica = fleet.front.replicas["a-cpu"]
        await until(lambda: replica.away_since_s is not None)
        await fleet.replicas.look()
        assert set(fleet.serve.told) == {"a-cpu"}  # it may be back any moment
        assert replica.away_since_s is not None
        replica.away_since_s -= AWAY_S
        await fleet.replicas.look()
        assert set(fleet.serve.told) == {"a-cpu", "b-cpu"}
        await until(lambda: fleet.ready == {"b-cpu"})
        fleet.serve.replicas["a-cpu"].gone = False
        await until(lambda: replica.state == "ready")
        async with asyncio.timeout(PATIENCE_S):
            while len(fleet.front.replicas) != 1:
                await fleet.replicas.look()
                await asyncio.sleep(0.05)


async def test_the_end_removes_everything(tmp_path: Path) -> None:
    async with fleet_of(tmp_path) as fleet:
        await fleet.come_to("a-cpu", "b-cpu")
        await fleet.replicas.end_all()
        assert fleet.serve.told == {}
        assert fleet.front.replicas == {}
