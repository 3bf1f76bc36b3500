"""What Serve says of the fleet's replicas, in our words. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from workhorse.codec import from_json
from workhorse.errors import AppError
from workhorse.fleet.cannot_start import CannotStart, read_report
from workhorse.fleet.serve_settings import DEPLOYMENT, spec_in
from workhorse.fleet.spec import ReplicaSpec, route_of

# placing: no node has what it needs free; starting: its node loads it; failed: Serve does not try
# again; away: it ran, and its replacement is not there yet.
DeploymentStatus = Literal["placing", "starting", "running", "away", "failed", "ending"]


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """How one replica is, as far as Serve knows."""

    status: DeploymentStatus
    message: str  # Serve's own words; "" when it has none
    node_id: str | None  # where it is; None: nowhere yet
    cannot_start: CannotStart | None = None  # why its last start failed


def states_in(details: Mapping[str, Any]) -> dict[str, DeploymentState]:
    """The state of each replica of the fleet, by name, from Serve's account of itself."""
    return {name: _state(app, ours) for name, app, ours in _ours(details)}


def specs_in(details: Mapping[str, Any]) -> dict[str, ReplicaSpec]:
    """What each replica was told, by name; those of another version of workhorse are left out."""
    found: dict[str, ReplicaSpec] = {}
    for name, app, ours in _ours(details):
        if _word(app.get("status")) == "DELETING":
            continue
        document = spec_in((ours.get("deployment_config") or {}).get("user_config"))
        try:
            spec = from_json(ReplicaSpec, document or "", what=name)
        except AppError:
            continue
        if spec.name == name:
            found[name] = spec
    return found


def starting_actors(details: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The actors of a replica that serve nobody yet, by Ray's name."""
    for one, _, ours in _ours(details):
        if one == name:
            replicas = ours.get("replicas") or []
            names = [two.get("actor_name") for two in replicas if _word(two["state"]) == "STARTING"]
            return tuple(two for two in names if two)
    return ()


def _ours(
    details: Mapping[str, Any],
) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Name, application and deployment of each replica of the fleet."""
    found = []
    for name, app in (details.get("applications") or {}).items():
        if app.get("route_prefix") == route_of(name):
            found.append((name, app, (app.get("deployments") or {}).get(DEPLOYMENT) or {}))
    return found


def _state(app: Mapping[str, Any], deployment: Mapping[str, Any]) -> DeploymentState:
    said = _word(app.get("status"))
    message = deployment.get("message") or app.get("message") or ""
    replicas = deployment.get("replicas") or []
    running = [one for one in replicas if _word(one.get("state")) == "RUNNING"]
    placed = [one.get("node_id") for one in (*running, *replicas) if one.get("node_id")]
    status: DeploymentStatus
    if said == "DELETING":
        status = "ending"
    elif said == "DEPLOY_FAILED":
        status = "failed"
    elif running:
        status = "running"
    elif said in ("RUNNING", "UNHEALTHY"):
        status = "away"
    else:
        status = "starting" if placed else "placing"
    told = None if status == "running" else read_report(message)
    return DeploymentState(status, message, placed[0] if placed else None, told)


def _word(value: object) -> str:
    """The word of an enumeration, or the word itself."""
    return str(getattr(value, "value", value))
