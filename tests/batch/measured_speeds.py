"""What the bench would keep of a service of known speeds."""

from workhorse.records import Conditions, Measurement, Run

CONDITIONS = Conditions("2026-12-01T01:00:00+00:00", None, None, "http://127.0.0.1:8080", "0.1.0")


def measured(
    streams: int,
    *,
    prefill: float = 400.0,
    decode: float = 100.0,
    prompt: int = 256,
    output: int = 64,
    rounds: int = 3,
) -> Measurement:
    """What a service would show that prefills and decodes at these speeds in all."""
    first_s, whole_s = streams * prompt / prefill, streams * (prompt / prefill + output / decode)
    runs = tuple(
        Run(stream, prompt, 0, output, (first_s, whole_s), whole_s, sent_s=100.0 * number)
        for number in range(rounds)
        for stream in range(streams)
    )
    return Measurement("ladder", prompt, output, streams, runs, CONDITIONS)
