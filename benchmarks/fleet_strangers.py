"""What does a machine without the token get from the nodes of a fleet?

    python benchmarks/fleet_strangers.py OUT.json

A head and a node in network namespaces serve; a third host, with an address beside theirs, has
neither the token nor a key. It tries to join with a wrong token and with none, asks the gateway,
each replica's route and each replica itself for a chat, and looks at every TCP port of both nodes
(`fleet_foreign.py`). What answered it with a 2xx is listed.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from batch_rig import machine_words
from fleet_rig import Host, Lab
from fleet_service import HERE, TOKEN, Fleet

# The client library and the command line of Ray, as a stranger would use them.
RAY = {
    "ray.init": "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)\n"
    "print('NODES', len(ray.nodes()))",
    "ray.init as a client": "import ray, sys\nray.init('ray://' + sys.argv[1].split(':')[0]"
    " + ':10001')\nprint('NODES', len(ray.nodes()))",
    "a job": "import sys\nfrom ray.job_submission import JobSubmissionClient as C\n"
    "print('NODES', C('http://' + sys.argv[1].split(':')[0] + ':8265')"
    ".submit_job(entrypoint='id'))",
}
# What gRPC says to calls without a token: each port that speaks it, each kind of service of Ray.
GRPC = """
import json, sys, grpc
found = {}
for port in json.loads(sys.argv[2]):
    with grpc.insecure_channel(f"{sys.argv[1]}:{port}") as channel:
        for method in json.loads(sys.argv[3]):
            call = channel.unary_unary(method, request_serializer=None)
            try:
                call(b"", timeout=20)
                found[f"{port} {method}"] = "OK"
            except grpc.RpcError as why:
                found[f"{port} {method}"] = why.code().name
print(json.dumps(found))
"""
METHODS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.InternalKVGcsService/InternalKVGet",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.NodeManagerService/RequestWorkerLease",
    "/ray.rpc.CoreWorkerService/PushTask",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.ReporterService/GetTraceback",
    "/ray.serve.ASGIService/HandleRequest",
)
CHAT = {"model": "fleet", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
POST = """
import json, sys, urllib.request as r, urllib.error as e
asked = r.Request(sys.argv[1], sys.argv[2].encode(), {"Content-Type": "application/json"})
if len(sys.argv) > 3:
    asked.add_header("Authorization", "Bearer " + sys.argv[3])
try:
    with r.urlopen(asked, timeout=60) as said:
        print(said.status, said.read()[:200].decode(errors="replace"))
except e.HTTPError as said:
    print(said.code, said.read()[:200].decode(errors="replace"))
except OSError as why:
    print(0, why)
"""


def post(stranger: Host, url: str, *key: str) -> str:
    """What a chat is answered with: the status and the beginning."""
    return stranger.run([sys.executable, "-c", POST, url, json.dumps(CHAT), *key]).stdout.strip()


def calls(stranger: Host, address: str, scan: list[dict[str, Any]]) -> dict[str, str]:
    """What each port that takes connections and speaks no HTTP/1 says to calls of Ray's."""
    ports = [one["port"] for one in scan if next(iter(one["says"].values()))[:2] == "b'"]
    words = [address, json.dumps(ports), json.dumps(METHODS)]
    found: dict[str, str] = json.loads(stranger.run([sys.executable, "-c", GRPC, *words]).stdout)
    return found


def joins(stranger: Host, fleet: Fleet) -> list[dict[str, Any]]:
    """Become a node, or a client of Ray, without the right token."""
    where = f"{fleet.head.address}:6379"
    rows = []
    for what, token in (("wrong token", "0" * 64), ("no token", None)):
        env = {"RAY_AUTH_MODE": "token"} if token else {}
        if token:
            stranger.write(TOKEN, token)
            env["RAY_AUTH_TOKEN_PATH"] = TOKEN
            words = [sys.executable, "-m", "workhorse", "fleet", "join", where]
            done = stranger.run([*words, "--token-file", TOKEN])
            said = (done.stdout + done.stderr).strip()
            rows.append({"tried": f"fleet join, {what}", "exit": done.returncode, "said": said})
        for name, program in RAY.items():
            done = stranger.run(["timeout", "90", sys.executable, "-c", program, where], env=env)
            got_in = "NODES" in done.stdout
            said = (done.stderr.strip().splitlines() or [""])[-1]
            rows.append({"tried": f"{name}, {what}", "got in": got_in, "said": said[:300]})
    return rows


def main() -> int:
    """Try it all; 1 when the stranger got an answer of a model, or became a member."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    with Lab() as lab:
        fleet = Fleet(lab, engine="--ttft-ms 50 --gap-ms 50", nodes=1)
        stranger = lab.host("stranger")
        fleet.up("--slots", "8", "--context", "2048")
        fleet.wait_replicas(2)
        routes = [f"/r/{one['name']}" for one in fleet.status()["replicas"]]
        urls = [f"{fleet.url}/v1/chat/completions"]
        for host in (fleet.head, *fleet.nodes):
            urls += [f"http://{host.address}:8000{route}/v1/chat/completions" for route in routes]
        asked = {url: post(stranger, url) for url in urls}
        asked |= {f"{url}, wrong key": post(stranger, url, "0" * 64) for url in urls}
        members = joins(stranger, fleet)
        scans, called = {}, {}
        for host in (fleet.head, *fleet.nodes):
            paths = [f"{route}/workhorse/replica" for route in routes]
            command = [sys.executable, str(HERE / "fleet_foreign.py"), host.address, *paths]
            scans[host.name] = json.loads(stranger.run(command).stdout)
            called[host.name] = calls(stranger, host.address, scans[host.name])
        nodes = len([one for one in fleet.status()["nodes"] if one["alive"]])
        fleet.down()
    got = [url for url, said in asked.items() if said.startswith("2")]
    got += [row["tried"] for row in members if row.get("got in") or row.get("exit") == 0]
    got += [
        f"{h}:{c}" for h, all_of in called.items() for c, said in all_of.items() if said == "OK"
    ]
    print("calls:", Counter(said for all_of in called.values() for said in all_of.values()))
    for url, said in asked.items():
        print(f"{said[:60]:60} {url}")
    for row in members:
        print(json.dumps(row))
    for name, scan in scans.items():
        for one in scan:
            print(f"{name}:{one['port']}", one["gives"], next(iter(one["says"].values()))[:60])
    document = {
        "asked": asked,
        "members": members,
        "ports": scans,
        "calls": called,
        "nodes": nodes,
        "got": got,
    }
    args.out.write_text(json.dumps(document | {"machine": machine_words()}) + "\n")
    print("the stranger got:", got or "nothing", "| nodes:", nodes)
    return 1 if got or nodes != 2 else 0


if __name__ == "__main__":
    sys.exit(main())
