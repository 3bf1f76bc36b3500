"""How a node is started: Ray's arguments, its environment, the ports that it opens. Pure.

Source: `ray start --help`, ray/_private/node.py, ray/serve/_private/constants.py and
haproxy_templates.py of Ray 2.60.0 (2026-11).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from workhorse.fleet.serve_settings import serve_environment
from workhorse.units import MIB

RAY_REQUIRED = "2.60.0"
HEAD_PORT = 6379
HTTP_PORT = 8000

# Logical: they bound how many tasks run at once and how many idle workers (80 MB each) are kept.
# Engines claim cards and memory nodes.
RAY_CPUS = 4
# Ray would take 30 % of the memory for objects; what the fleet sends is small. Ray's least: 75 MiB.
OBJECT_STORE_BYTES = 128 * MIB
# Logical, and nothing claims it; left out, Ray refuses a machine whose memory is nearly full
# (ray/_private/resource_and_label_spec.py of 2.60.0, 2026-11).
RAY_MEMORY_BYTES = 1024 * MIB


@dataclass(frozen=True, slots=True)
class Ports:
    """Every port that a node opens; of `worker` and `replica` the first and the last."""

    head: int = HEAD_PORT  # GCS; on the head alone
    node: int = 6380  # raylet
    objects: int = 6381
    agent_grpc: int = 6382
    agent_http: int = 6383
    environments: int = 6384
    ray_metrics: int = 6385
    head_metrics: int = 6386  # on the head alone, as the next
    waiting: int = 6387  # Serve's own proxy: where HAProxy sends when a replica is gone
    dashboard: int = 8265  # on the head's loopback alone
    worker: tuple[int, int] = (10002, 10257)
    http: int = HTTP_PORT  # HAProxy, on every node
    replica: tuple[int, int] = (30000, 30099)
    weights: tuple[int, int] = (8090, 8097)  # the first free one: `weights_share`
    proxy_metrics: int = 9101
    proxy_stats: int = 8404


def port_twice(ports: Ports, *, head: bool) -> int | None:
    """The first port that a node would open for two purposes; None: there is none."""
    taken = {ports.dashboard} if head else set()
    for one in open_ports(ports):
        if one.head_only and not head:
            continue
        numbers = range(one.first, one.last + 1)
        for number in numbers:
            if number in taken:
                return number
        taken.update(numbers)
    return None


@dataclass(frozen=True, slots=True)
class NodeStart:
    """What a node is started with."""

    name: str
    address: str  # of the head, host:port
    node_address: str  # IP of this node, by which the others reach it
    head: bool
    token_file: str
    temp_dir: str
    ports: Ports
    resources: Mapping[str, float]
    labels: Mapping[str, str]


def arguments(start: NodeStart) -> tuple[str, ...]:
    """What follows `ray` on the command line. With `--block` the kernel ends Ray's own
    processes with the one that is started.
    """
    ports = start.ports
    labels = ",".join(f"{key}={value}" for key, value in sorted(start.labels.items()))
    role = (
        (
            "--head",
            f"--port={ports.head}",
            "--include-dashboard=false",
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={ports.dashboard}",
            "--no-monitor",  # the autoscaler of clouds
        )
        if start.head
        else (f"--address={start.address}",)
    )
    return (
        "start",
        *role,
        "--block",
        # No --node-name: HAProxy is given it as the address of the head, so it has to be the IP.
        f"--node-ip-address={start.node_address}",
        f"--node-manager-port={ports.node}",
        f"--object-manager-port={ports.objects}",
        f"--dashboard-agent-grpc-port={ports.agent_grpc}",
        f"--dashboard-agent-listen-port={ports.agent_http}",
        f"--runtime-env-agent-port={ports.environments}",
        f"--metrics-export-port={ports.ray_metrics}",
        f"--min-worker-port={ports.worker[0]}",
        f"--max-worker-port={ports.worker[1]}",
        f"--num-cpus={RAY_CPUS}",
        "--num-gpus=0",  # cards are claimed one by one, as gpu_0
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--memory={RAY_MEMORY_BYTES}",
        f"--resources={json.dumps(dict(start.resources), sort_keys=True)}",
        f"--labels={labels}",
        f"--temp-dir={ray_folder(start.temp_dir)}",
        "--disable-usage-stats",
        "--log-style=record",
        "--log-color=false",
    )


def ray_folder(temp_dir: str) -> str:
    """Where Ray keeps its sockets and logs. Ray lets everybody write there, so it is inside of a
    folder that nobody else can enter.
    """
    return f"{temp_dir}/r"


def cluster_environment(token_file: str, temp_dir: str, ports: Ports) -> dict[str, str]:
    """What every process of the fleet has to find in its environment, clients of it too."""
    proxy = f"{temp_dir}/p"  # short: see `member.temp_dir`
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": token_file,
        "RAY_USAGE_STATS_ENABLED": "0",
        "DASHBOARD_METRIC_PORT": str(ports.head_metrics),
        "RAY_START_HOOK": "workhorse.fleet.on_ray.no_client_server.apply",
        # Ray would end replicas when 95 % of the memory is used, as by a model that fills it.
        "RAY_memory_monitor_refresh_ms": "0",
        # Slow disks, and cores that engines have: Ray gives up after 30 and 60 s.
        "RAY_gcs_server_port_wait_time_s": "180",
        "RAY_worker_register_timeout_seconds": "300",
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        # By default in /tmp, where HAProxy's control socket is open to every user of the machine.
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{proxy}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{proxy}/admin.sock",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": proxy,
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{proxy}/server-state",
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": f"{proxy}/metrics.sock",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports.proxy_metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports.proxy_stats),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ports.replica[0]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ports.replica[1]),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports.waiting),
        **serve_environment(),
    }


def without_ray(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without what it says to Ray: it would be of another Ray of this user."""
    return {key: value for key, value in environ.items() if not key.startswith("RAY_")}


@dataclass(frozen=True, slots=True)
class OpenPort:
    """One port, or a range, that other nodes have to reach."""

    first: int
    last: int
    what: str  # the process that listens
    head_only: bool = False
    outside: bool = False  # also of use to who watches from elsewhere


def open_ports(ports: Ports) -> tuple[OpenPort, ...]:
    """Every port that a node opens to the others."""

    def one(number: int, what: str, *, head_only: bool = False, outside: bool = False) -> OpenPort:
        return OpenPort(number, number, what, head_only, outside)

    return (
        one(ports.head, "GCS", head_only=True),
        one(ports.node, "raylet"),
        one(ports.objects, "object manager"),
        one(ports.agent_grpc, "agent (gRPC)"),
        one(ports.agent_http, "agent (HTTP)"),
        one(ports.environments, "runtime environment agent"),
        one(ports.ray_metrics, "Ray metrics", outside=True),
        one(ports.head_metrics, "Ray metrics of the head", head_only=True, outside=True),
        OpenPort(*ports.worker, "workers"),
        one(ports.http, "HAProxy"),
        one(ports.waiting, "Serve's own proxy", head_only=True),
        OpenPort(*ports.replica, "replicas"),
        OpenPort(*ports.weights, "weights"),
        one(ports.proxy_metrics, "HAProxy metrics", outside=True),
        one(ports.proxy_stats, "HAProxy statistics", outside=True),
    )


def firewall_commands(ports: Ports, network: str, *, head: bool) -> tuple[str, ...]:
    """nftables commands that let the network of the nodes in, and nobody else, on these ports."""
    numbers = ", ".join(
        str(one.first) if one.first == one.last else f"{one.first}-{one.last}"
        for one in open_ports(ports)
        if head or not one.head_only
    )
    family, other = ("ip6", "ipv4") if ":" in network else ("ip", "ipv6")
    rule = f'add rule inet workhorse_fleet input iifname != "lo" tcp dport {{ {numbers} }}'
    chain = "add chain inet workhorse_fleet input"
    return (
        "nft add table inet workhorse_fleet",
        f"nft '{chain} {{ type filter hook input priority 0; policy accept; }}'",
        f"nft '{rule} {family} saddr != {network} drop'",
        f"nft '{rule} meta nfproto {other} drop'",
    )
