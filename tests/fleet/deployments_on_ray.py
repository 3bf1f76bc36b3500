"""Runs on a lone head of the lab: replicas put and removed with Serve; prints what was seen.

One line of JSON: how a replica that refuses, one without a place and one with a running answer end.
"""

import http.client
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

import builders
from workhorse.config import places
from workhorse.fleet.connect import connect
from workhorse.fleet.deployed import DeploymentState
from workhorse.fleet.member import this_member
from workhorse.fleet.secret import read_token, replica_key
from workhorse.fleet.spec import FACTS_PATH, REPLICA_HEADER, ReplicaSpec
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild

PATIENCE_S = 600.0
TOKENS = 200
FAKE = EngineBuild(
    engine="fake",
    kind="fake",
    command=(sys.executable, "-m", "workhorse.engines.fake"),
    version="fake",
    needs_flags=(),
    gpu_architectures=(),
    openmp=None,
    library_dir=None,
    knows=("--model",),
    source="test",
)
PLAN = make_plan(builders.machine(), builders.model(), FAKE, Wish(context_tokens=1024, slots=2))

member = this_member(places())
cluster = connect(member)
from workhorse.fleet.on_ray.deploy import Deployments  # noqa: E402  Ray's environment is set now

KEY = replica_key(read_token(Path(member.token_file)))
deployments = Deployments(cluster)


def spec(name: str, *options: str, numa: float = 0.25) -> ReplicaSpec:
    build = replace(FAKE, command=(*FAKE.command, *options))
    (node,) = cluster.nodes()
    return ReplicaSpec(
        name, "m", replace(PLAN, engine=build), None, {"numa_0": numa}, node.kind, node.id
    )


def until(name: str, good: Callable[[DeploymentState | None], bool]) -> DeploymentState | None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not good(state := deployments.states().get(name)):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{name}: {state}")
        time.sleep(0.1)
    return state


def ask(name: str, path: str, body: Any = None) -> http.client.HTTPResponse:
    link = http.client.HTTPConnection("127.0.0.1", member.ports.http, timeout=PATIENCE_S)
    sent = None if body is None else json.dumps(body)
    headers = {"Authorization": f"Bearer {KEY}", "Connection": "close"}
    link.request("GET" if sent is None else "POST", f"/r/{name}{path}", sent, headers)
    return link.getresponse()


def is_gone(state: DeploymentState | None) -> bool:
    return state is None


def runs(state: DeploymentState | None) -> bool:
    return state is not None and state.status == "running"


def main() -> dict[str, Any]:
    """What was seen."""
    deployments.start(member.ports.http)
    seen: dict[str, Any] = {}

    deployments.put(spec("refuses", "--die-at-start"))
    refused = until("refuses", lambda one: one is not None and one.status == "failed")
    assert refused is not None
    told = refused.cannot_start
    seen["why"] = None if told is None else [told.what.en, told.what.zh, told.speaker]
    deployments.remove("refuses")

    deployments.put(spec("large", numa=9.0))
    until("large", lambda one: one is not None)
    deployments.remove("large")
    until("large", is_gone)

    deployments.put(spec("good", "--gap-ms", "20"))
    until("good", runs)
    while (answer := ask("good", FACTS_PATH)).getheader(REPLICA_HEADER) is None:
        time.sleep(0.1)  # HAProxy hears of it a moment later
    seen["facts"] = json.loads(answer.read())
    seen["asked for"] = TOKENS
    seen["taken over"] = deployments.specs() == {"good": spec("good", "--gap-ms", "20")}
    body = {"prompt": "on", "n_predict": TOKENS, "ignore_eos": True, "stream": True}
    stream = ask("good", "/completion", body)
    stream.readline()
    deployments.remove("good")
    *_, last = (line for line in stream.read().splitlines() if line)
    seen["tokens"] = json.loads(last.removeprefix(b"data: "))["tokens_predicted"]
    until("good", is_gone)
    seen["after"] = ask("good", FACTS_PATH).status
    return seen


if __name__ == "__main__":
    print(json.dumps(main()))
