"""What the gateway learns of prompts' beginnings from each answer: templates' hits, waste."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from workhorse.records import Alarm
from workhorse.serve.figures import TokenCount
from workhorse.serve.prefix import PrefixWatch
from workhorse.serve.templates import Ledger, Tally, Template

# Of fewer tokens the engine computes at another speed than of a template.
LEARN_TOKENS = 128

log = logging.getLogger(__name__)


class Prefixes(Collector):
    """The templates' tallies, as metrics too, and the clients that defeat the prompt cache."""

    def __init__(
        self, templates: Iterable[Template] = (), clock: Callable[[], float] = time.time
    ) -> None:
        self.ledger = Ledger(templates)
        self._watch = PrefixWatch()
        self._clock = clock
        self._since: dict[tuple[str, int], float] = {}  # by key and place: told once

    def answered(self, key: str, model: str, prompt: bytes, counts: list[TokenCount]) -> None:
        """A request was answered in full; `prompt` is its JSON, of which nothing is kept."""
        if not counts:
            return
        count = counts[0]
        cached = count.cached
        computed = (count.prompt or 0) - (cached or 0)
        if count.prefill_tokens_per_s and computed >= LEARN_TOKENS:
            self.ledger.prefilled(model, computed, computed / count.prefill_tokens_per_s)
        self.ledger.answered(model, prompt, cached)
        if self._watch.saw(key, model, prompt, count.prompt, cached):
            self._tell()

    def _tell(self) -> None:
        """What is new among the findings goes to the log, once."""
        spots = {(spot.key, spot.word) for spot in self._watch.spots()}
        new = spots - self._since.keys()
        self._since = {spot: self._since.get(spot, self._clock()) for spot in spots}
        for spot, finding in zip(self._watch.spots(), self._watch.findings(), strict=True):
            if (spot.key, spot.word) in new:
                log.warning("%s %s", finding.seen.en, finding.remedy.en)

    def tallies(self) -> tuple[Tally, ...]:
        """Each template with each model."""
        return self.ledger.tallies()

    def alarms(self) -> tuple[Alarm, ...]:
        """The clients that defeat the cache now."""
        return tuple(
            Alarm(finding, self._since.get((spot.key, spot.word), self._clock()), None, spot.key)
            for spot, finding in zip(self._watch.spots(), self._watch.findings(), strict=True)
        )

    def collect(self) -> Iterator[Metric]:
        """The same for `/metrics`."""
        labels = ("template", "model")
        requests = CounterMetricFamily(
            "workhorse_template_requests",
            "Requests that began with a template; hit: the engine had it.",
            labels=(*labels, "outcome"),
        )
        tokens = CounterMetricFamily(
            "workhorse_template_saved_tokens",
            "Tokens of a template that were not computed again.",
            labels=labels,
        )
        seconds = CounterMetricFamily(
            "workhorse_template_saved_seconds",
            "What they would have taken, at the prefill speed that was measured.",
            labels=labels,
        )
        ready = GaugeMetricFamily(
            "workhorse_template_ready", "1 when an engine holds the template.", labels=labels
        )
        for one in self.tallies():
            name = (one.name, one.model)
            requests.add_metric((*name, "hit"), one.hits)
            requests.add_metric((*name, "miss"), one.requests - one.hits)
            tokens.add_metric(name, one.saved_tokens)
            seconds.add_metric(name, one.saved_s)
            ready.add_metric(name, one.state == "ready")
        yield from (requests, tokens, seconds, ready)
