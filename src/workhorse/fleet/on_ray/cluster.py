"""The fleet as Ray shows it: who is a member, and work done on one of them."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, ParamSpec, TypeVar

import ray
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_exists,
    _internal_kv_put,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from workhorse.errors import AppError
from workhorse.fleet.member import Member
from workhorse.fleet.node_facts import NAME, Node
from workhorse.fleet.ray_start import ray_folder
from workhorse.text import Text

P = ParamSpec("P")
R = TypeVar("R")

NAMESPACE = "workhorse"
HEAD_RESOURCE = "node:__internal_head__"  # what Ray gives to the head alone
DRAINING = b"draining "  # and the node's id: a key in the head's store

Ending = tuple[Literal["value"], Any] | tuple[Literal["error"], dict[str, Any]]


class Cluster:
    """This process as a client of the fleet that this machine is a node of. Calls block."""

    def __init__(self, member: Member) -> None:
        self.member = member

    @classmethod
    def connect(cls, member: Member) -> "Cluster":
        """Reach the fleet; an AppError when the head does not answer or refuses the token.

        The environment has to be set before Ray is imported: `fleet.connect` does both.
        """
        try:
            ray.init(
                address=member.address,
                namespace=NAMESPACE,
                configure_logging=False,
                log_to_driver=False,
                _node_ip_address=member.node_address,
                _temp_dir=ray_folder(member.temp_dir),
            )
        except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
            raise AppError(
                Text(
                    f"The fleet at {member.address} cannot be reached: {_first_line(error)}",
                    f"无法连接集群 {member.address}：{_first_line(error)}",
                ),
                Text(
                    "`workhorse fleet status` tells how this node is; the head has to run.",
                    "用 `workhorse fleet status` 查看本节点状态；主节点必须在运行。",
                ),
            ) from error
        return cls(member)

    def nodes(self) -> tuple[Node, ...]:
        """Every node since the head started, dead ones too: the head first, then by name."""
        # Those that end: `fleet leave`, or whatever else asked Ray's own start to end.
        ending = get_draining_nodes()
        found = [self._node(one, ending) for one in ray.nodes()]
        return tuple(sorted(found, key=lambda one: (not one.head, one.name, not one.alive, one.id)))

    def _node(self, told: dict[str, Any], ending: Mapping[str, int]) -> Node:
        labels = told.get("Labels") or {}
        resources = told.get("Resources") or {}
        address = told["NodeManagerAddress"]
        return Node(
            id=told["NodeID"],
            name=labels.get(NAME) or told.get("NodeName") or address,
            address=address,
            head=HEAD_RESOURCE in resources,
            alive=bool(told["Alive"]),
            draining=told["NodeID"] in ending
            or bool(_internal_kv_exists(_draining(told["NodeID"]), namespace=NAMESPACE)),
            labels=dict(labels),
            resources=dict(resources),
        )

    def set_draining(self, node_id: str, draining: bool) -> None:
        """Write down for every client that a node is to get no replica, or may again.

        The mark goes with the start of the node: it comes back as another id, unmarked.
        """
        if draining:
            _internal_kv_put(_draining(node_id), b"1", overwrite=True, namespace=NAMESPACE)
        else:
            _internal_kv_del(_draining(node_id), namespace=NAMESPACE)

    def on_node(
        self,
        node: Node,
        function: Callable[P, R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """What a function of an importable module returns on a node, by value.

        An AppError that it raises there is raised here; so is one when the node is lost.
        """
        there = NodeAffinitySchedulingStrategy(node.id, soft=False)
        task = ray.remote(_ending_of).options(
            num_cpus=0, max_retries=0, scheduling_strategy=there, name=function.__name__
        )
        try:
            kind, ending = ray.get(task.remote(function, args, kwargs))
        except ray.exceptions.RayError as error:
            raise AppError(
                Text(
                    f"Node {node.name} did not end its work: {_first_line(error)}",
                    f"节点 {node.name} 未能完成任务：{_first_line(error)}",
                ),
                Text(
                    "`workhorse fleet status` shows whether it lives; ask again.",
                    "用 `workhorse fleet status` 查看节点是否在线，然后重试。",
                ),
            ) from error
        if kind == "error":
            raise AppError(**ending)
        value: R = ending
        return value

    def close(self) -> None:
        """Leave the fleet as a client; nodes and replicas stay."""
        ray.shutdown()


def get_draining_nodes() -> dict[str, int]:
    """The ids of the nodes that end, and when at the latest; Ray has no public word for it."""
    found: dict[str, int] = ray._private.state.state.get_draining_nodes()
    return found


def _draining(node_id: str) -> bytes:
    return DRAINING + node_id.encode()


def _ending_of(function: Callable[..., Any], args: Any, kwargs: Any) -> Ending:
    """Runs on the node. An AppError does not survive Ray's own way of raising it elsewhere."""
    try:
        return "value", function(*args, **kwargs)
    except AppError as error:
        return "error", {
            "what": error.what,
            "next_step": error.next_step,
            "speaker": error.speaker,
            "exit_code": error.exit_code,
        }


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
