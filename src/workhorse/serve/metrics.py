"""What `/metrics` says, in Prometheus' text format."""

from collections.abc import Callable, Iterator, Sequence

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from workhorse.serve.backend import Served
from workhorse.serve.figures import TokenCount

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
CLIENT_LEFT = 499  # nginx's status for a request whose client closed the connection

# From a cached prompt on a fast card to a long prompt on an old CPU.
_TTFT_BUCKETS_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
_DECODE_BUCKETS = (1, 2, 5, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300, 500)


class Metrics:
    """The gateway's counters: one registry for each gateway."""

    def __init__(
        self,
        *,
        in_flight: Callable[[], int],
        served: Callable[[], Sequence[Served]],
    ) -> None:
        # The time a counter was made, beside each counter, is of no use to anybody here.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "workhorse_requests_total",
            "Requests answered, by route and HTTP status; 499: the client left first.",
            ("route", "status"),
            registry=self._registry,
        )
        self._clients_left = self._counter(
            "workhorse_clients_left_total", "Clients that left before their answer was complete."
        )
        self._prompt_tokens = self._counter(
            "workhorse_prompt_tokens_total", "Prompt tokens, those from the cache included."
        )
        self._cached_tokens = self._counter(
            "workhorse_prompt_tokens_cached_total", "Prompt tokens taken from the engine's cache."
        )
        self._generated_tokens = self._counter(
            "workhorse_generation_tokens_total", "Tokens generated for answers that completed."
        )
        self.time_to_first_token_s = Histogram(
            "workhorse_time_to_first_token_seconds",
            "From a request's arrival to the first token of its answer, waiting included.",
            buckets=_TTFT_BUCKETS_S,
            registry=self._registry,
        )
        self._decode_tokens_per_s = Histogram(
            "workhorse_decode_tokens_per_second",
            "Decode speed of one answer as the engine counted it.",
            buckets=_DECODE_BUCKETS,
            registry=self._registry,
        )
        self._registry.register(_Now(in_flight, served))

    def count_request(self, route: str, status: int) -> None:
        """Counts one request that is over."""
        self._requests.labels(route, str(status)).inc()
        if status == CLIENT_LEFT:
            self._clients_left.inc()

    def count_tokens(self, counts: list[TokenCount]) -> None:
        """Counts what one answer took; what the engine did not say is not counted."""
        for count in counts:
            self._prompt_tokens.inc(count.prompt or 0)
            self._cached_tokens.inc(count.cached or 0)
            self._generated_tokens.inc(count.generated or 0)
            if count.decode_tokens_per_s is not None:
                self._decode_tokens_per_s.observe(count.decode_tokens_per_s)

    def page(self) -> bytes:
        """The whole page."""
        return generate_latest(self._registry)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(name, about, registry=self._registry)


class _Now(Collector):
    """What is read at the moment of asking: requests in flight and the engine."""

    def __init__(
        self,
        in_flight: Callable[[], int],
        served: Callable[[], Sequence[Served]],
    ) -> None:
        self._in_flight = in_flight
        self._served = served

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "workhorse_requests_in_flight",
            "Requests being answered that make the engine work.",
            value=self._in_flight(),
        )
        state = GaugeMetricFamily(
            "workhorse_engine_state",
            "1 for the state that the engine of a model is in.",
            labels=("model", "state"),
        )
        restarts = CounterMetricFamily(
            "workhorse_engine_restarts_total",
            "Times the engine of a model was started again after it had died.",
            labels=("model",),
        )
        for one in self._served():
            state.add_metric((one.model_name, one.backend.state), 1)
            restarts.add_metric((one.model_name,), one.backend.restarts)
        yield state
        yield restarts
