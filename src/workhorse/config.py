"""Where workhorse keeps what it fetched and learned, and the addresses it uses."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workhorse.errors import AppError
from workhorse.text import Text

HOST = "127.0.0.1"
PORT = 8080
# File Hierarchy Standard 3.0, 5.8 (2026-11): state of one machine. Under sudo the home folder is
# root's or the user's, as sudo is set up; what one has changed the other has to find.
SHARED = Path("/var/lib/workhorse")


@dataclass(frozen=True, slots=True)
class Places:
    """The folders and files of one installation, all under `data` but for `host`."""

    data: Path
    shared: Path | None = None  # what belongs to the machine and to no user; None: in `data`

    @property
    def models(self) -> Path:
        """Fetched models."""
        return self.data / "models"

    @property
    def engines(self) -> Path:
        """Engine builds, one folder each."""
        return self.data / "engines"

    @property
    def tools(self) -> Path:
        """What builds engines: a compiler, cmake, ninja."""
        return self.data / "tools"

    @property
    def rehearsals(self) -> Path:
        """Skeletons and twins while they are needed."""
        return self.data / "rehearsals"

    @property
    def logs(self) -> Path:
        """Engine logs."""
        return self.data / "logs"

    @property
    def store(self) -> Path:
        """Forecasts and measurements."""
        return self.data / "measurements-1.sqlite"  # the number: of the table's form

    @property
    def tuning(self) -> Path:
        """Every trial of the tuner, and the plans that it ended with."""
        return self.data / "tuning-1.sqlite"  # the number: of the tables' form

    @property
    def tuning_lock(self) -> Path:
        """Held by the process that tunes."""
        return self.data / "tuning.lock"

    @property
    def service(self) -> Path:
        """What a service keeps of its own: keys, usage, history."""
        return self.data / "service-1.sqlite"  # the number: of the tables' form

    @property
    def batch(self) -> Path:
        """Every batch job, its items, and what was answered."""
        return self.data / "batch-1.sqlite"  # the number: of the tables' form

    @property
    def files(self) -> Path:
        """Files and batches of OpenAI's API, and what the files hold."""
        return self.data / "files"

    @property
    def templates(self) -> Path:
        """The user's own templates for batch jobs."""
        return self.data / "templates"

    @property
    def states(self) -> Path:
        """What engines have computed of declared templates; no other prompt is kept."""
        return self.data / "states"

    @property
    def run(self) -> Path:
        """The services that run: one file each."""
        return self.data / "run"

    @property
    def host(self) -> Path:
        """The original settings of this host; one place, whoever changed them as root."""
        return (self.shared or self.data) / "host"


def places(environ: Mapping[str, str] = os.environ) -> Places:
    """`WORKHORSE_HOME`, else `workhorse` under the user's data folder (XDG)."""
    if home := environ.get("WORKHORSE_HOME"):
        return Places(Path(home))
    try:
        base = environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    except RuntimeError as error:
        raise AppError(
            Text(f"There is no home folder: {error}.", f"没有主目录：{error}。"),
            Text("Set WORKHORSE_HOME to a folder.", "请把 WORKHORSE_HOME 设为一个目录。"),
        ) from error
    return Places(Path(base) / "workhorse", shared=SHARED)
