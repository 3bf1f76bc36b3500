"""What is offered to the nodes, read on the head, and what each node would do with it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from workhorse import __version__
from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.fleet.kinds import NodeFound
from workhorse.fleet.node_facts import VERSION, Node
from workhorse.fleet.plan_here import PlanRequest, WantedModel, plan_here
from workhorse.fleet.spec import WeightsSource
from workhorse.fleet.weights_files import model_files, shared_files, sources_of
from workhorse.fleet.weights_share import WeightsShare
from workhorse.models.embedded import embedded_model
from workhorse.models.gguf import read_gguf
from workhorse.models.stored import stored_shape
from workhorse.tell import Teller
from workhorse.up.asks import checked
from workhorse.up.decide import Ask, checkpoint_of


class OnNodes(Protocol):
    """The cluster, as `on_ray/cluster.py` has it. Blocks."""

    def on_node(self, node: Node, function: Any, *args: Any, **kwargs: Any) -> Any:
        """What a function returns on a node."""
        ...


def wanted_models(
    names: Sequence[str], ask: Ask, where: Places, tell: Teller
) -> tuple[WantedModel, ...]:
    """The files that the user offers, read on the head; with none, the packaged model.

    Blocks. Raises AppError: a file is not here, or none that can be served.
    """
    if not names:
        path = embedded_model(where.data, tell.progress)
        return (WantedModel(read_gguf(path)),)
    return tuple(_wanted(replace(ask, model=name), where) for name in names)


def _wanted(ask: Ask, where: Places) -> WantedModel:
    one = checked(ask, where.models)
    stored = checkpoint_of(one)
    if stored is not None:
        return WantedModel(stored_shape(stored), stored)
    return WantedModel(read_gguf(Path(str(one.model))))


def with_weights(
    wanted: Sequence[WantedModel], share: WeightsShare, where: Places, tell: Teller
) -> tuple[WantedModel, ...]:
    """The same, with where the nodes fetch each file; `share` gives them from now on. Blocks."""
    found = []
    for one in wanted:
        files = shared_files(
            model_files(Path(one.model.path)), where.data / "fleet" / "hashes", tell.progress
        )
        share.add(files)
        found.append(replace(one, weights=sources_of(files, share.url)))
    return tuple(found)


def weights_of(wanted: Sequence[WantedModel]) -> tuple[tuple[WeightsSource, ...], ...]:
    """What a node fetches for each file."""
    return tuple(one.weights for one in wanted)


async def collect(
    cluster: OnNodes, nodes: Sequence[Node], request: PlanRequest
) -> tuple[NodeFound, ...]:
    """What each node would do, asked of all of them at once; those that cannot be asked say why."""

    async def ask_one(node: Node) -> NodeFound:
        if not node.alive or node.draining or node.labels.get(VERSION, __version__) != __version__:
            return NodeFound(node, None)
        try:
            plans = await asyncio.to_thread(cluster.on_node, node, plan_here, request)
        except AppError as error:
            return NodeFound(node, None, error.what)
        return NodeFound(node, plans)

    return tuple(await asyncio.gather(*map(ask_one, nodes)))
