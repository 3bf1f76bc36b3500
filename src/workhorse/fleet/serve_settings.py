"""How Ray Serve is told to run replicas: what its processes find in their environment. Pure.

Source: ray/serve/_private/{constants,haproxy,haproxy_templates,replica}.py and deployment_state.py
of Ray 2.60.0 (2026-11).
"""

from collections.abc import Mapping
from typing import Any

from workhorse.codec import to_line
from workhorse.fleet.node_facts import KIND
from workhorse.fleet.spec import ReplicaSpec

DEPLOYMENT = "engine"  # the name of the one deployment in each application
SPEC = "workhorse_spec"  # the key in its configuration
NODE_ID = "ray.io/node-id"  # Ray's own label of each node

# The gateway decides who waits and who is refused; these only have to be out of its way.
MOST_REQUESTS = 4096
# Of one answer that runs while its replica is to end: a long one of an old CPU.
LONGEST_DRAIN_S = 1800.0


def serve_environment() -> dict[str, str]:
    """What Serve's controller, HAProxy's owners and replicas have to find, on each node."""
    return {
        # Each replica that comes or goes makes HAProxy start anew; what the old process still
        # streams is cut off after this time, by default after two minutes.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(6 * 3600),
        # By default longer than the above: ports would run out. Old processes get no new requests,
        # because the gateway keeps no connection.
        "RAY_SERVE_PORT_QUARANTINE_S": "180",
        # A refused connection is tried once more; then the gateway takes another way or replica.
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure",
        "RAY_SERVE_HAPROXY_RETRIES": "1",
        "RAY_SERVE_HAPROXY_TIMEOUT_CONNECT_S": "2",
        # The longest silence of an engine; by default a vanished node is waited for for ever.
        "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S": "3600",
        # A server that refuses is not to hand its requests to Serve's own queue at once.
        "RAY_SERVE_HAPROXY_OBSERVE_MARK_DOWN_ENABLED": "0",
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",  # one more message for each request
        # A dead HAProxy is started anew after three looks, by default after half a minute. With
        # more of them, one that a busy machine is slow to start is ended before it serves.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "3",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
        "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": "120",
        # The gateway has stopped sending before a replica is told to end.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        # Else each piece of a stream crosses to another thread.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    }


def deployment_options(spec: ReplicaSpec) -> dict[str, Any]:
    """What Serve is told of a replica: where it may run, what it claims, how it ends."""
    place = {KIND: spec.kind} if spec.node_id is None else {NODE_ID: spec.node_id}
    return {
        "name": DEPLOYMENT,
        "num_replicas": 1,
        # No CPU and no GPU of Ray's own: it would set OMP_NUM_THREADS and CUDA_VISIBLE_DEVICES.
        "ray_actor_options": {
            "num_cpus": 0,
            "num_gpus": 0,
            "resources": dict(spec.needs),
            "label_selector": place,
        },
        "user_config": {SPEC: to_line(spec)},
        "max_ongoing_requests": MOST_REQUESTS,
        "max_queued_requests": -1,
        "graceful_shutdown_wait_loop_s": 0.5,
        "graceful_shutdown_timeout_s": LONGEST_DRAIN_S,
        # What refuses to start is told at once; whether to try again is the fleet's decision.
        "max_constructor_retry_count": 1,
        "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
    }


def spec_in(user_config: object) -> str | None:
    """The spec, as JSON, in the configuration of a deployment; None when it is none of ours."""
    found = user_config.get(SPEC) if isinstance(user_config, Mapping) else None
    return found if isinstance(found, str) else None
