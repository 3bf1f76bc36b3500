"""What `/metrics` says, in Prometheus' text format.

The names are those that vLLM (docs/design/metrics.md, 2026-11) gives the same things, under our
own prefix: who has a board for vLLM changes the prefix. What llama-server counts under other
names (`tokens_predicted_total`, `requests_deferred`) has vLLM's name here.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from workhorse.records import Alarm, Reading
from workhorse.serve.backend import Served
from workhorse.serve.figures import TokenCount
from workhorse.serve.gauges import gauges

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
CLIENT_LEFT = 499  # nginx's status for a request whose client closed the connection

# From a cached prompt on a fast card to a long prompt on an old CPU.
_TTFT_BUCKETS_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
_WHOLE_BUCKETS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_QUEUE_BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
_GAP_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5)
_DECODE_BUCKETS = (1, 2, 5, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300, 500)


class Metrics:
    """The gateway's counters: one registry for each gateway.

    `reading` and `alarms` give what the guard saw last; without a guard there is nothing to say.
    """

    def __init__(
        self,
        *,
        in_flight: Callable[[], int],
        served: Callable[[], Sequence[Served]],
        reading: Callable[[], Reading | None] = lambda: None,
        alarms: Callable[[], Iterable[Alarm]] = tuple,
    ) -> None:
        # The time a counter was made, beside each counter, is of no use to anybody here.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._requests = self._counter(
            "workhorse_requests_total",
            "Requests answered, by route and HTTP status; 499: the client left first.",
            ("route", "status"),
        )
        self._clients_left = self._counter(
            "workhorse_clients_left_total", "Clients that left before their answer was complete."
        )
        self._refused = self._counter(
            "workhorse_requests_refused_total",
            "Requests that there was no room for, by what they ran into.",
            ("why",),
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
        self.time_to_first_token_s = self._histogram(
            "workhorse_time_to_first_token_seconds",
            "From a request's arrival to the first token of its answer, waiting included.",
            _TTFT_BUCKETS_S,
        )
        self.e2e_request_latency_s = self._histogram(
            "workhorse_e2e_request_latency_seconds",
            "From a request's arrival to the end of its answer, waiting included.",
            _WHOLE_BUCKETS_S,
        )
        self.request_queue_time_s = self._histogram(
            "workhorse_request_queue_time_seconds",
            "What a request waited in the gateway for a free slot.",
            _QUEUE_BUCKETS_S,
        )
        self._decode_tokens_per_s = self._histogram(
            "workhorse_decode_tokens_per_second",
            "Decode speed of one answer as the engine counted it.",
            _DECODE_BUCKETS,
        )
        self._token_gaps = _TokenGaps()
        self._registry.register(self._token_gaps)
        self._registry.register(_Now(lambda: gauges(in_flight(), served(), reading(), alarms())))

    def count_request(self, route: str, status: int) -> None:
        """Counts one request that is over."""
        self._requests.labels(route, str(status)).inc()
        if status == CLIENT_LEFT:
            self._clients_left.inc()

    def count_refusal(self, why: str) -> None:
        """Counts one request that was not taken."""
        self._refused.labels(why).inc()

    def count_tokens(self, counts: list[TokenCount]) -> None:
        """Counts what one answer took; what the engine did not say is not counted."""
        for count in counts:
            self._prompt_tokens.inc(count.prompt_once)
            self._cached_tokens.inc(count.cached_once)
            self._generated_tokens.inc(count.generated or 0)
            if count.decode_tokens_per_s is not None:
                self._decode_tokens_per_s.observe(count.decode_tokens_per_s)
                self._token_gaps.add(1 / count.decode_tokens_per_s, (count.generated or 1) - 1)

    def add(self, collector: Collector) -> None:
        """Have the page say what `collector` knows as well."""
        self._registry.register(collector)

    def page(self) -> bytes:
        """The whole page."""
        return generate_latest(self._registry)

    def _counter(self, name: str, about: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, about, buckets=buckets, registry=self._registry)


class _TokenGaps(Collector):
    """The time between two tokens, each token counted once.

    The engine says the mean of an answer and how many tokens it had, so that an answer is one
    step of work here and not one for each token; prometheus_client's own histogram counts by one.
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(_GAP_BUCKETS_S) + 1)
        self._sum_s = 0.0

    def add(self, gap_s: float, times: int) -> None:
        self._counts[bisect_left(_GAP_BUCKETS_S, gap_s)] += times
        self._sum_s += gap_s * times

    def collect(self) -> Iterator[Metric]:
        names = (*map(str, map(float, _GAP_BUCKETS_S)), "+Inf")
        upto = [sum(self._counts[: index + 1]) for index in range(len(names))]
        yield HistogramMetricFamily(
            "workhorse_inter_token_latency_seconds",
            "Between two tokens of one answer: the mean of each answer, counted once a token.",
            buckets=list(zip(names, upto, strict=True)),
            sum_value=self._sum_s,
        )


class _Now(Collector):
    """What is read at the moment of asking."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()
