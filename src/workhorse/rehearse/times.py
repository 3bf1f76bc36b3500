"""What the twins took, round by round."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class TwinTimes:
    """What one twin took, a value a round, in seconds.

    `token_s` for one token of one stream, `prompt_s` for the whole standard prompt and the first
    token, `deep_token_s` at the deep end of the protocol, `streams_token_s` for one token of
    each of several streams.
    """

    token_s: list[float] = field(default_factory=list)
    prompt_s: list[float] = field(default_factory=list)
    deep_token_s: list[float] = field(default_factory=list)
    streams_token_s: list[float] = field(default_factory=list)

    def of(self, scenario: str) -> list[float]:
        """The times of one token in a scenario of the protocol."""
        return {"deep": self.deep_token_s, "streams": self.streams_token_s}.get(
            scenario, self.token_s
        )
