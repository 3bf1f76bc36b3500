"""Installs a bundle into one folder, with nothing fetched, and switches to it at the end.

    PREFIX/bin/workhorse       the command; the last thing that is written, by one rename
    PREFIX/app/ID/             a Python environment for each bundle that was installed
    PREFIX/models, engines     as workhorse keeps them; PREFIX is its WORKHORSE_HOME

Before that last rename the old command does what it did; the same install, run again, goes on.
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .check import compare_folder, refuse_difference
from .files import alone, place, told_of_disk
from .manifest import MANIFEST, Manifest, Part, read_manifest
from .target import Here, look, refuse_full, refuse_unfit, runs
from .words import Refusal, Words

WHOLE = "complete"  # beside an environment that was finished
LIBRARY_FOLDER = "lib/workhorse-openmp"  # where workhorse looks for libgomp (engines/openmp.py)


class Tell(Protocol):
    """Who tells the user how far we are."""

    def stage(self, words: Words) -> None:
        """The next stage begins."""

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        """Bytes of this stage."""


@dataclass(frozen=True)
class Installed:
    """What is there now."""

    command: Path
    models: tuple[Path, ...]
    engines: tuple[str, ...]


def default_prefix(environ: Mapping[str, str] = os.environ) -> Path:
    """Where workhorse keeps its data when nothing else is said (see workhorse.config)."""
    if home := environ.get("WORKHORSE_HOME"):
        return Path(home)
    base = environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "workhorse"


def install(bundle: Path, prefix: Path, tell: Tell) -> Installed:
    """Check every byte and this machine, then install; Refusal when something is wrong."""
    bundle, prefix = bundle.absolute(), prefix.absolute()
    refuse_inside(bundle, prefix)
    manifest, here = read_manifest(bundle), look()
    refuse_unfit(manifest, here)
    tell.stage(Words("checking every file of the bundle", "核对离线包的全部文件"))
    refuse_difference(compare_folder(bundle, manifest, tell.progress))
    refuse_others_models(manifest, prefix)
    with told_of_disk(prefix), alone(prefix / "app"):
        refuse_full(bundle, manifest, prefix, here.python)
        tell.stage(Words("installing the programs", "安装程序"))
        environment = make_environment(bundle, manifest, here, prefix / "app")
        tell.stage(Words("bringing the models", "放置模型"))
        bring(bundle, prefix, manifest, ("model", "nvidia"), tell)
        names = []
        for part in manifest.of_kind("engine"):
            if runs(part, here):
                tell.stage(Words(f"trying the engine {part.name}", f"验证引擎 {part.name}"))
                names.append(install_engine(bundle, prefix, part, environment))
        command = write_command(prefix, environment)
    models = tuple(prefix / part.files[0] for part in manifest.of_kind("model"))
    return Installed(command, models, tuple(names))


def refuse_inside(bundle: Path, prefix: Path) -> None:
    """Refusal to install into the bundle: it would never again be as it was made."""
    if prefix.resolve().is_relative_to(bundle.resolve()):
        raise Refusal(
            Words(f"{prefix} lies in the bundle itself.", f"{prefix} 位于离线包内部。"),
            Words("Name a folder elsewhere: --prefix FOLDER.", "请指定其他位置：--prefix 目录。"),
            2,
        )


def refuse_others_models(manifest: Manifest, prefix: Path) -> None:
    """Refusal when a name that will be written is taken by another file."""
    sizes = {file.path: file for file in manifest.files}
    for part in manifest.parts:
        for path in part.files if part.kind in ("model", "nvidia") else ():
            target = prefix / path
            if os.path.lexists(target) and not is_file(target, sizes[path].sha256):
                raise Refusal(
                    Words(
                        f"{target} is there already and is another file than the bundle's.",
                        f"{target} 已存在，且与离线包中的文件不同。",
                    ),
                    Words("Move it away, then run this again.", "请先移走它，再重新运行。"),
                )


def is_file(path: Path, sha256: str) -> bool:
    """Whether `path` is a file with that hash."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


def make_environment(bundle: Path, manifest: Manifest, here: Here, apps: Path) -> Path:
    """The environment of this bundle below `apps`; made anew unless it was finished."""
    document = (bundle / MANIFEST).read_bytes()
    digest = hashlib.sha256(document).hexdigest()[:12]
    environment = apps / f"{manifest.workhorse}-py{here.python}-{digest}"
    if (environment / WHOLE).exists() and answers(environment):
        return environment
    for left in apps.iterdir():  # of installs that were broken off
        if not (left / WHOLE).exists():
            shutil.rmtree(left, ignore_errors=True)
    shutil.rmtree(environment, ignore_errors=True)
    lay_out(environment, here)
    fill(environment, bundle, manifest, here)
    for part in () if here.openmp else manifest.of_kind("library"):
        for path in part.files:
            place(bundle / path, environment / LIBRARY_FOLDER / Path(path).name, lambda _: None)
    if not answers(environment):
        raise Refusal(
            Words("The installed program does not start.", "安装的程序无法启动。"),
            Words(
                f"Look why: {environment}/bin/python -I -m workhorse --version",
                f"请查看原因：{environment}/bin/python -I -m workhorse --version",
            ),
        )
    (environment / WHOLE).touch()
    return environment


def lay_out(environment: Path, here: Here) -> None:
    """An empty environment, as PEP 405 wants it: Debian has no `venv` that works by itself."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    packages = environment / "lib" / f"python{here.python}" / "site-packages"
    packages.mkdir(parents=True)
    (environment / "lib64").symlink_to("lib")
    (environment / "bin").mkdir()
    (environment / "bin" / "python").symlink_to(base)
    settings = {
        # Not the place that a link leads to: the standard library lies beside this one.
        "home": os.path.dirname(base),
        "include-system-site-packages": "false",
        "version": "{}.{}.{}".format(*sys.version_info),
    }
    lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
    (environment / "pyvenv.cfg").write_text(lines)


def fill(environment: Path, bundle: Path, manifest: Manifest, here: Here) -> None:
    """Put the wheels for this Python into the environment, with the pip that is among them."""
    wheels = [part for part in manifest.of_kind("wheel") if here.python in part.pythons]
    paths = [str(bundle / path) for part in wheels for path in part.files]
    pip = next((str(bundle / part.files[0]) for part in wheels if part.name == "pip"), "")
    with tempfile.TemporaryDirectory(dir=environment) as scratch:  # /tmp is often small
        run(
            [str(environment / "bin" / "python"), "-I", f"{pip}/pip", "install", "--no-index",
             "--no-deps", "--no-cache-dir", "--no-input", "--disable-pip-version-check",
             "--no-warn-script-location", "--quiet", *paths],
            {"TMPDIR": scratch},
            Words("the programs", "程序"),
        )  # fmt: skip


def answers(environment: Path) -> bool:
    """Whether the environment has all that workhorse imports."""
    python = str(environment / "bin" / "python")
    asked = ([python, "-I", "-m", "pip", "check"], [python, "-I", "-m", "workhorse", "--version"])
    try:
        return all(
            subprocess.run(words, capture_output=True, env=clean({}), check=False).returncode == 0
            for words in asked
        )
    except OSError:  # the Python that it was made with is gone
        return False


def bring(bundle: Path, prefix: Path, manifest: Manifest, kinds: Sequence[str], tell: Tell) -> None:
    """The files of some kinds at their places; those that are there were compared before."""
    wanted = {path for part in manifest.parts if part.kind in kinds for path in part.files}
    files = [file for file in manifest.files if file.path in wanted]
    total_bytes, done_bytes = sum(file.n_bytes for file in files), 0

    def moved(n_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += n_bytes
        tell.progress(done_bytes, total_bytes)

    for file in files:
        target = prefix / file.path
        if target.exists():
            moved(file.n_bytes)
            continue
        digest = place(bundle / file.path, target, moved)
        if digest not in (None, file.sha256):
            target.unlink()
            raise Refusal(
                Words(
                    f"{file.path} changed while it was copied.", f"{file.path} 在复制时发生变化。"
                ),
                Words("Check the disk and run this again.", "请检查磁盘后重新运行。"),
            )


def install_engine(bundle: Path, prefix: Path, part: Part, environment: Path) -> str:
    """Have the installed workhorse take a build, which it tries first; returns its name there."""
    folder = bundle / "engines" / part.name
    name = part.name
    if (prefix / "engines" / name).exists():
        if files_of(prefix / "engines" / name) == files_of(folder):
            return name
        digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
        name = f"{part.name[:54]}-{digest[:8]}"
        if (prefix / "engines" / name).exists():
            return name
    python = str(environment / "bin" / "python")
    run(
        [python, "-I", "-m", "workhorse", "engine", "install", str(folder), "--name", name],
        {"WORKHORSE_HOME": str(prefix)},
        Words(f"the engine {part.name}", f"引擎 {part.name}"),
    )
    return name


def files_of(build: Path) -> object:
    """What the record of an engine build says of its files."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return json.loads((build / "manifest.json").read_bytes())["files"]
    return build  # equal to nothing else


def write_command(prefix: Path, environment: Path) -> Path:
    """PREFIX/bin/workhorse for this environment: from here on the new one is what runs."""
    command = prefix / "bin" / "workhorse"
    command.parent.mkdir(exist_ok=True)
    part = command.with_name(".workhorse.part")
    home, python = shlex.quote(str(prefix)), shlex.quote(str(environment / "bin" / "python"))
    with part.open("w") as file:
        file.write(
            f'#!/bin/sh\n[ -n "${{WORKHORSE_HOME:-}}" ] || WORKHORSE_HOME={home}\n'
            f'export WORKHORSE_HOME\nexec {python} -I -m workhorse "$@"\n'
        )
        file.flush()
        os.fsync(file.fileno())
    part.chmod(0o755)
    part.replace(command)
    return command


def run(command: Sequence[str], more: Mapping[str, str], what: Words) -> None:
    """Run a program of the environment; Refusal with its last words when it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=clean(more), check=False
    )
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        said = " ".join(lines[-3:])[:600] or f"exit code {done.returncode}"
        raise Refusal(
            Words(f"{what.en} cannot be installed: {said}", f"无法安装{what.zh}：{said}"),
            Words("Mend that and run this again.", "请解决后重新运行。"),
        )


def clean(more: Mapping[str, str]) -> dict[str, str]:
    """This environment without what would change how Python and pip work."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
    return {**ours, "PIP_CONFIG_FILE": os.devnull, **more}
