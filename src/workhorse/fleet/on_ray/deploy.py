"""Replicas as Serve applications: one application a replica, put, removed and looked at.

Which there are to be is decided elsewhere (`fleet/scale.py`); Serve only keeps each one running.
All calls block.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException

from workhorse.errors import AppError
from workhorse.fleet.deployed import DeploymentState, specs_in, starting_actors, states_in
from workhorse.fleet.on_ray.cluster import Cluster
from workhorse.fleet.on_ray.replica import Replica
from workhorse.fleet.serve_settings import deployment_options
from workhorse.fleet.spec import ReplicaSpec
from workhorse.text import Text

SERVE_NAMESPACE = "serve"  # ray/serve/_private/constants.py (2.60.0)
ANSWER_TIMEOUT_S = 60.0  # of Serve's controller
# A proxy that Serve replaces while it is waited for is an error to who waits.
START_TRIES = 3
# What Serve, its controller and Ray raise when they cannot be asked or do not do it.
_REFUSALS = (ray.exceptions.RayError, RayServeException, RuntimeError, ValueError, TimeoutError)


class Deployments:
    """Every replica of the fleet, as Serve has them now."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def start(self, http_port: int) -> None:
        """Have Serve run, with HAProxy at this port of each node; nothing when it runs already.

        Raises AppError, also when it runs at another port.
        """
        for left in reversed(range(START_TRIES)):
            try:
                port = self._start(http_port)
                break
            except _REFUSALS as error:
                if not left:
                    raise _cannot("start its HTTP port", "启动 HTTP 端口", error) from error
        # Whoever has started it: Serve keeps its first settings until it ends.
        if port != http_port:
            raise AppError(
                Text(
                    f"The fleet serves at port {port} already, not at {http_port}.",
                    f"集群已在端口 {port} 提供服务，而非 {http_port}。",
                ),
                Text(
                    "Use that port, or start the head anew with the other one.",
                    "请使用该端口，或用另一端口重新启动主节点。",
                ),
            )

    def _start(self, http_port: int) -> int:
        """The port at which Serve serves."""
        # Serve goes on with it after its minute; a busy machine needs longer, and whoever asks
        # over HAProxy finds out anyway whether it is there.
        with suppress(TimeoutError):
            serve.start(
                proxy_location="EveryNode",
                # HAProxy mode takes no other address.
                http_options={"host": "0.0.0.0", "port": http_port},  # noqa: S104
                logging_config={"enable_access_log": False, "log_level": "WARNING"},
            )
        port: int = _get_global_client().http_config.port
        return port

    def put(self, spec: ReplicaSpec) -> None:
        """Have this replica run; one of the same name by another spec is replaced.

        Returns before it runs: `states` tells how far it is.
        """
        if self.specs().get(spec.name) == spec and not self._has_failed(spec.name):
            return
        deployment = serve.deployment(serve.ingress()(Replica)).options(**deployment_options(spec))
        target = serve.RunTarget(target=deployment.bind(), name=spec.name, route_prefix=spec.route)
        try:
            # A node that is cut off does not answer that its proxy serves; that is no reason to
            # wait, or to think that the application was not taken.
            with suppress(TimeoutError):
                serve.run_many(
                    [target],
                    wait_for_ingress_deployment_creation=False,
                    wait_for_applications_running=False,
                )
        except _REFUSALS as error:
            raise _cannot(f"take replica {spec.name}", f"接收副本 {spec.name}", error) from error

    def _has_failed(self, name: str) -> bool:
        state = self.states().get(name)
        return state is not None and state.status == "failed"

    def remove(self, name: str) -> None:
        """End a replica: its running answers first. Returns at once; nothing when there is none."""
        starting = starting_actors(self._details(), name)
        try:
            serve.delete(name, _blocking=False)
            self._details()  # by its answer the controller has taken in the word before
            # Serve waits as long for the answers of one that has never run, or has no place.
            for actor in starting:
                with suppress(ValueError):  # it is gone
                    ray.kill(ray.get_actor(actor, namespace=SERVE_NAMESPACE))
        except _REFUSALS as error:
            raise _cannot(f"remove replica {name}", f"移除副本 {name}", error) from error

    def states(self) -> Mapping[str, DeploymentState]:
        """How each replica is, by name."""
        return states_in(self._details())

    def specs(self) -> Mapping[str, ReplicaSpec]:
        """What each replica was told, by name: who takes a fleet over finds it here."""
        return specs_in(self._details())

    def _details(self) -> Mapping[str, Any]:
        # Not `serve.status()`: it leaves out where replicas are and what they were told.
        try:
            client = _get_global_client(raise_if_no_controller_running=False)
            if client is None:
                return {}
            # The client's own call for it would wait for ever for a controller that hangs.
            asked = client._controller.get_serve_instance_details.remote()
            found: Mapping[str, Any] = ray.get(asked, timeout=ANSWER_TIMEOUT_S)
        except _REFUSALS as error:
            raise _cannot("tell how the replicas are", "报告副本状态", error) from error
        return found


def _cannot(en: str, zh: str, error: BaseException) -> AppError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = lines[-1] if lines else type(error).__name__
    return AppError(
        Text(f"Ray Serve could not {en}: {why}", f"Ray Serve 无法{zh}：{why}"),
        Text(
            "`workhorse fleet status` shows the nodes; the logs are in the head's Ray folder.",
            "用 `workhorse fleet status` 查看节点；日志位于主节点的 Ray 目录。",
        ),
    )
