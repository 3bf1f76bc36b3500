"""Where a running engine answers, and the key without which it does not. Pure."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Address:
    """One start of an engine as those see it who ask it."""

    url: str  # such as http://127.0.0.1:40001, without a slash at the end
    key: str | None = field(default=None, repr=False)  # of this start alone; None: it asks for none

    @property
    def headers(self) -> dict[str, str]:
        """What a request has to bring."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
