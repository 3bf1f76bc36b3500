"""What the benchmarks of batch jobs share: a service, the command, real documents, figures kept."""

import hashlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from workhorse import __version__

START_S = 300.0
# Kinds of documents, and how many of a hundred of each.
SHARES = {"readme": 30, "licence": 5, "text": 25, "source": 40}
LEAST_CHARS = 200


@contextmanager
def service(home: Path, model: Path, *options: str, say: bool = False) -> Iterator[tuple[str, int]]:
    """`workhorse up MODEL` on a free port with a data folder of its own: its URL, its process."""
    said = home / "up.txt"
    command = [sys.executable, "-m", "workhorse", "up", str(model), "--port", "0", *options]
    with said.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--no-measure"], stdout=out, stderr=subprocess.STDOUT, env=environment(home)
        )
    try:
        deadline_s = time.monotonic() + START_S
        while not (found := re.search(r"(http://\S+)/v1 ", said.read_text())):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"the service did not start:\n{said.read_text()}")
            time.sleep(0.1)
        if say:
            print(said.read_text(), file=sys.stderr)
        yield found[1], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        process.kill()
        process.wait()


def environment(home: Path) -> dict[str, str]:
    """The environment of an installation in `home`."""
    return {**os.environ, "WORKHORSE_HOME": str(home), "WORKHORSE_LANG": "en"}


def workhorse(home: Path, *words: str, code: Sequence[int] = (0,)) -> Any:
    """What a command prints as JSON; SystemExit for another exit code than these."""
    command = [sys.executable, "-m", "workhorse", *words]
    done = subprocess.run(command, env=environment(home), stdout=subprocess.PIPE, text=True)
    if done.returncode not in code:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}\n{done.stdout}")
    return json.loads(done.stdout) if "--json" in words else done.stdout


def fake_server(folder: Path, options: str) -> Path:
    """The fake engine as a program that is called like llama-server."""
    program = folder / "llama-server"
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        '--help) printf "%s\\n" "--ctx-size N" "--parallel N" "--model F" "--port N" '
        '"--api-key K";;\n'
        "--version) echo version: 1;;\n"
        f"*) exec {sys.executable} -m workhorse.engines.fake --ignore-unknown {options} "
        '"$@";;\n'
        "esac\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def write_documents(folder: Path, count: int, chars: int) -> dict[str, int]:
    """So many real documents of this Python and its packages in a folder; how many of each kind.

    READMEs as packages carry them, licences, texts and source files, each cut behind the last
    whole line within `chars`. Chosen by the hash of their path: the same on each machine that has
    the same packages.
    """
    found: dict[str, list[tuple[str, str]]] = {kind: [] for kind in SHARES}
    seen: set[str] = set()
    for kind, name, path in candidates():
        text = beginning(path, chars)
        if len(text) >= LEAST_CHARS and text not in seen:
            seen.add(text)
            found[kind].append((name, text))
    counts = {kind: min(count * share // 100, len(found[kind])) for kind, share in SHARES.items()}
    # Where there are too few of the others, source files take their place.
    counts["source"] = min(count - sum(counts.values()) + counts["source"], len(found["source"]))
    for kind, many in counts.items():
        chosen = sorted(found[kind], key=lambda one: hashlib.sha256(one[0].encode()).digest())[
            :many
        ]
        for number, (name, text) in enumerate(chosen):
            (folder / f"{kind}-{number:03}-{name}").write_text(text, encoding="utf-8")
    return counts


def candidates() -> Iterator[tuple[str, str, Path]]:
    """Kind, name and path of each file that may become a document."""
    for package in sorted(distributions(), key=lambda one: one.name or ""):
        name = re.sub(r"[^A-Za-z0-9]+", "-", package.name or "")
        for file in package.files or ():
            path = Path(str(file.locate()))
            if file.name == "METADATA":
                yield "readme", f"{name}.md", path
            elif re.match(r"(?i)(licen[sc]e|copying|notice)", file.name):
                yield "licence", f"{name}.txt", path
            elif file.suffix in (".txt", ".rst", ".md") and "dist-info" not in str(file):
                yield "text", f"{name}-{path.stem}.txt", path
            elif file.suffix == ".py" and "test" not in str(file):
                yield "source", f"{name}-{path.stem}.py", path
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        if "site-packages" not in path.parts and "test" not in str(path.relative_to(library)):
            yield "source", f"python-{path.stem}.py", path
    for path in sorted(library.rglob("*.txt")):
        yield "text", f"python-{path.stem}.txt", path


def beginning(path: Path, chars: int) -> str:
    """The first whole lines of a text; of a package's METADATA its README. Empty: no text."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(200_000)
    except (OSError, UnicodeDecodeError):
        return ""
    if path.name == "METADATA":
        text = text.partition("\n\n")[2].lstrip()
    if len(text) > chars:
        text = text[:chars].rpartition("\n")[0]
    return text


def machine_words() -> dict[str, object]:
    """What ran beside it, as far as the load of the machine tells."""
    load = Path("/proc/loadavg").read_text(encoding="ascii").split()[:3]
    return {"version": __version__, "cpus": os.cpu_count(), "load": load, "unix_s": time.time()}
