"""What Serve says of replicas, read; what it is told of them."""

from enum import Enum
from typing import Any

import pytest

import builders
from workhorse.codec import to_line
from workhorse.errors import AppError
from workhorse.fleet.cannot_start import CannotStart, in_a_line, read_report
from workhorse.fleet.deployed import specs_in, starting_actors, states_in
from workhorse.fleet.serve_settings import DEPLOYMENT, SPEC, deployment_options, spec_in
from workhorse.fleet.spec import ReplicaSpec
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.text import Text

PLAN = make_plan(builders.machine(), builders.model(), builders.EMBEDDED, Wish())
SPEC_1 = ReplicaSpec("a-1", "m", PLAN, None, {"gpu_0": 1.0}, "p40-e5")
REFUSED = AppError(
    Text('It does not fit: "9 GB"\\n.', "内存不足。"),
    Text("Take less.", "减小。"),
    speaker="engine",
)


class Status(str, Enum):  # noqa: UP042  as Serve has its own
    RUNNING = "RUNNING"


def app(status: Any, message: str = "", *replicas: dict[str, Any], told: Any = None) -> Any:
    config = {"user_config": {SPEC: to_line(SPEC_1)} if told is None else told}
    deployment = {"message": message, "replicas": list(replicas), "deployment_config": config}
    return {"status": status, "route_prefix": "/r/a-1", "deployments": {DEPLOYMENT: deployment}}


def details(one: Any, name: str = "a-1") -> dict[str, Any]:
    return {"applications": {name: one}}


RUNS = {"state": Status.RUNNING, "node_id": "n1"}
STARTS = {"state": "STARTING", "node_id": "n2"}
WAITS = {"state": "STARTING", "node_id": None}


@pytest.mark.parametrize(
    ("one", "status", "node_id"),
    [
        (app(Status.RUNNING, "", RUNS), "running", "n1"),
        (app("DEPLOYING", "", WAITS), "placing", None),
        (app("DEPLOYING", "", STARTS), "starting", "n2"),
        (app("UNHEALTHY", "", STARTS), "away", "n2"),
        (app(Status.RUNNING, "", STARTS), "away", "n2"),
        (app("DELETING", "", RUNS), "ending", "n1"),
        (app("DEPLOY_FAILED", "no"), "failed", None),
        ({"status": "DEPLOYING", "route_prefix": "/r/a-1"}, "placing", None),
    ],
)
def test_how_a_replica_is(one: Any, status: str, node_id: str | None) -> None:
    state = states_in(details(one))["a-1"]
    assert (state.status, state.node_id, state.cannot_start) == (status, node_id, None)


def test_why_it_cannot_start_survives_rays_traceback() -> None:
    report = (
        "The deployment failed to start 1 times in a row. Error:\n\x1b[36mray::ServeReplica:a-1"
        "\x1b[39m\n    raise CannotStartError(in_a_line(error))\n"
        f"workhorse.fleet.on_ray.replica.CannotStartError: {in_a_line(REFUSED)}\n"
    )
    told = CannotStart(REFUSED.what, REFUSED.next_step, "engine")
    assert states_in(details(app("DEPLOY_FAILED", report)))["a-1"].cannot_start == told
    # One that runs again has nothing to complain of.
    assert states_in(details(app("RUNNING", report, RUNS)))["a-1"].cannot_start is None


@pytest.mark.parametrize(
    "report", ["", "Error", "workhorse-cannot-start: {", "workhorse-cannot-start: {}", "\0" * 9]
)
def test_another_report_says_nothing(report: str) -> None:
    assert read_report(report) is None


def test_what_a_replica_was_told_is_found_again() -> None:
    assert specs_in(details(app("RUNNING", "", RUNS))) == {"a-1": SPEC_1}


@pytest.mark.parametrize(
    "one",
    [
        app("DELETING"),
        app("RUNNING", told="a text"),
        app("RUNNING", told={SPEC: "{}"}),
        app("RUNNING", told={SPEC: to_line(SPEC_1).replace("a-1", "b-1")}),
        app("RUNNING", told={}),
    ],
)
def test_what_is_not_ours_to_take_over_is_left_out(one: Any) -> None:
    assert specs_in(details(one)) == {}


def test_only_what_serves_nobody_is_ended_without_asking() -> None:
    waits, runs = {**WAITS, "actor_name": "R::w"}, {**RUNS, "actor_name": "R::r"}
    told = details(app("DEPLOYING", "", runs, waits))
    assert starting_actors(told, "a-1") == ("R::w",)
    assert starting_actors(told, "b-1") == starting_actors({}, "a-1") == ()


def test_an_application_of_somebody_else_is_not_looked_at() -> None:
    assert states_in(details(app("RUNNING", "", RUNS), name="chat")) == {}
    assert states_in({}) == {}


def test_it_claims_its_devices_and_nothing_that_ray_would_act_on() -> None:
    told = deployment_options(SPEC_1)
    actor = told["ray_actor_options"]
    assert (actor["num_cpus"], actor["num_gpus"], actor["resources"]) == (0, 0, {"gpu_0": 1.0})
    assert actor["label_selector"] == {"workhorse.kind": "p40-e5"}
    assert told["max_ongoing_requests"] > 1000
    assert spec_in(told["user_config"]) == to_line(SPEC_1)


def test_a_pinned_replica_goes_to_that_node() -> None:
    pinned = ReplicaSpec("a-1", "m", PLAN, None, {}, "p40-e5", node_id="abc")
    actor = deployment_options(pinned)["ray_actor_options"]
    assert actor["label_selector"] == {"ray.io/node-id": "abc"}
