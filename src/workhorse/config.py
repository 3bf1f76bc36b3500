"""Where workhorse keeps what it fetched and learned, and the addresses it uses."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
PORT = 8080


@dataclass(frozen=True, slots=True)
class Places:
    """The folders and files of one installation, all under `data`."""

    data: Path

    @property
    def models(self) -> Path:
        """Fetched models."""
        return self.data / "models"

    @property
    def logs(self) -> Path:
        """Engine logs."""
        return self.data / "logs"

    @property
    def store(self) -> Path:
        """Forecasts and measurements."""
        return self.data / "workhorse.sqlite"


def places(environ: Mapping[str, str] = os.environ) -> Places:
    """`WORKHORSE_HOME`, else `workhorse` under the user's data folder (XDG)."""
    if home := environ.get("WORKHORSE_HOME"):
        return Places(Path(home).expanduser())
    base = environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Places(Path(base) / "workhorse")
