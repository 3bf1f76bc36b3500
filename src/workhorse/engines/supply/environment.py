"""Engines that are Python packages, each in an environment of its own below the engines' folder.

Nothing of ours is changed and nothing of theirs is imported: pip is run on the new environment
from outside, with the user's index, mirror, proxy and certificates.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from workhorse.codec import from_json, to_json
from workhorse.doctor.gpu_code import code_for
from workhorse.engines.supply.asked import Asked, ask
from workhorse.engines.supply.builds import ENVIRONMENT, Builds, disk_bytes
from workhorse.engines.supply.packages import run_pip, write_requirements
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.knowledge.engine_environments import CPU, EnvironmentRecipe, holds
from workhorse.knowledge.gpus import cards
from workhorse.models.part_file import check_space, local_errors, sync_folder
from workhorse.records import EngineBuild
from workhorse.tell import Teller
from workhorse.text import Text, same

RECORD = ENVIRONMENT
_BYTES_MAX = 4_000_000
# Fetched one by one, so that a broken-off download has lost little; the rest in groups.
_LARGE = re.compile(
    r"^(torch|nvidia|vllm|lmdeploy|triton|xformers|flashinfer|cuda|ray|opencv)", re.IGNORECASE
)
_GROUP = 12
Step = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Environment:
    """One installed environment: what was asked for and what is there."""

    name: str
    engine: Literal["vllm", "lmdeploy"]
    target: str  # cpu, or a range of compute capabilities
    module: str
    python: str
    asked: Asked
    installed_at: str  # ISO 8601, UTC
    needs_flags: tuple[str, ...] = ()
    form: Literal[1] = 1


def read_environment(folder: Path) -> Environment | None:
    """The environment in a folder; None when there is none or its record cannot be read."""
    with suppress(OSError, AppError):
        raw = (folder / RECORD).read_bytes()[:_BYTES_MAX]
        found = from_json(Environment, raw, what=RECORD)
        return found if found.name == folder.name else None
    return None


def installed(builds: Builds) -> list[Environment]:
    """Every environment of this installation, by name."""
    folders = sorted(builds.folder.glob(f"*/{RECORD}"))
    return [found for path in folders if (found := read_environment(path.parent)) is not None]


def build_of(folder: Path, environment: Environment) -> EngineBuild:
    """The environment as plans know it; nothing is started."""
    asked = environment.asked
    torch = f", torch {asked.torch}" if asked.torch else ""
    return EngineBuild(
        engine=environment.engine,
        kind="environment",
        command=(str(folder / "bin" / "python"), "-m", environment.module),
        version=f"{environment.engine} {asked.version} ({environment.name})",
        needs_flags=environment.needs_flags,
        gpu_architectures=reached(environment.target, asked.architectures),
        openmp=None,
        library_dir=None,
        knows=asked.options,
        source=f"{environment.name}{torch}, asked when it was installed",
        model_classes=asked.model_classes,
    )


def reached(target: str, architectures: Sequence[str]) -> tuple[str, ...]:
    """`sm_70` …: the cards of the target that its PyTorch has machine code or PTX for."""
    if target == CPU:
        return ()
    sass = tuple(name for name in architectures if name.startswith("sm_"))
    ptx = tuple(name for name in architectures if name.startswith("compute_"))
    found = []
    for capability in sorted({card.capability for card in cards()}):
        code = code_for(capability, sass, ptx)
        if holds(target, capability) and code is not None and code.kind != "none":
            found.append(f"sm_{capability[0]}{capability[1]}")
    return tuple(found)


def install(recipe: EnvironmentRecipe, builds: Builds, tell: Teller) -> Environment:
    """Install an environment under its own name; raises AppError.

    It gets its name when it has answered what it is; until then nothing of it is seen, and what
    was there before stays. Broken off, the same call goes on with the packages that have arrived.
    """
    with builds.alone() as lock:
        refuse_taken(builds.folder / recipe.name)
        python, minor = find_python(recipe)
        work = builds.folder / f".venv-{recipe.name}"
        with local_errors(work):
            (work / "wheels").mkdir(parents=True, exist_ok=True)
            # pip takes a package that it was killed over for one that is installed.
            for begun_before in (work / "env", work / "arriving", work / "tmp"):
                if begun_before.exists():
                    shutil.rmtree(begun_before)
        kept = disk_bytes(work)
        check_space(work, max(0, recipe.download_bytes + recipe.disk_bytes - kept))
        packages = recipe.packages(minor)
        tell.stage(Text(f"fetching {recipe.name}", f"获取 {recipe.name}"))
        home = make_venv(python, work / "env")
        fetch_wheels(home, packages, work / "wheels", recipe, tell.progress, lock)
        tell.stage(Text("installing the packages", "安装软件包"))
        put_in(home, packages, work / "wheels", tell.progress, lock)
        tell.stage(Text("asking the engine what it is", "查询引擎信息"))
        asked = ask(home, recipe.engine, recipe.module)
        refuse_without_code(recipe, asked)
        record = Environment(
            name=recipe.name,
            engine=recipe.engine,
            target=recipe.target,
            module=recipe.module,
            python=minor,
            asked=asked,
            installed_at=datetime.now(UTC).isoformat(timespec="seconds"),
            needs_flags=recipe.needs_flags,
        )
        target = builds.folder / recipe.name
        with local_errors(target):
            (home / RECORD).write_text(to_json(record) + "\n", "utf-8")
            # Its python is a link and its libraries find each other by relative paths: it may
            # be moved, but for the scripts in bin/, which nothing here uses.
            home.rename(target)
            sync_folder(builds.folder)
            shutil.rmtree(work, ignore_errors=True)
    return record


def refuse_taken(folder: Path) -> None:
    """AppError when there is a build or environment of this name."""
    if folder.exists():
        raise AppError(
            Text(f"{folder.name} is installed already.", f"{folder.name} 已安装。"),
            Text(
                f"To install it again, first: workhorse engine remove {folder.name}",
                f"如需重装，请先执行：workhorse engine remove {folder.name}",
            ),
            exit_code=EXIT_USAGE,
        )


def refuse_without_code(recipe: EnvironmentRecipe, asked: Asked) -> None:
    """AppError when its PyTorch has no code for the cards that it is installed for."""
    if recipe.target == CPU or reached(recipe.target, asked.architectures):
        return
    raise AppError(
        Text(
            f"PyTorch {asked.torch} of {recipe.name} has no code for its cards.",
            f"{recipe.name} 的 PyTorch {asked.torch} 不含其目标显卡的代码。",
        ),
        Text(
            "Set pip's index to a mirror with PyTorch's CUDA wheels (PIP_INDEX_URL).",
            "请将 pip 源设为提供 CUDA 版 PyTorch 的镜像（PIP_INDEX_URL）。",
        ),
    )


def find_python(recipe: EnvironmentRecipe) -> tuple[str, str]:
    """A Python that the packages are pinned for, ours first: its path and `3.11`; AppError."""
    pinned = recipe.pythons()
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    if ours in pinned:
        return sys.executable, ours
    for minor in reversed(pinned):
        if path := shutil.which(f"python{minor}"):
            return path, minor
    listed = ", ".join(pinned)
    raise AppError(
        Text(
            f"{recipe.name} needs Python {listed}; here is {ours}.",
            f"{recipe.name} 需要 Python {listed}；本机为 {ours}。",
        ),
        Text(
            f"Install python{pinned[-1]} beside yours; it is found by its name.",
            f"请另装 python{pinned[-1]}，会按名称自动找到。",
        ),
    )


def make_venv(python: str, home: Path) -> Path:
    """An environment without pip; AppError when this Python cannot make one."""
    made = subprocess.run(
        [python, "-m", "venv", "--without-pip", str(home)],
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if made.returncode:
        said = (made.stdout + made.stderr).strip().splitlines() or ["no reason given"]
        raise AppError(
            Text(
                f"No environment can be made with {python}: {said[-1]}",
                f"无法用 {python} 创建环境：{said[-1]}",
            ),
            Text(
                "Install the system's venv package for this Python.",
                "请为该 Python 安装系统的 venv 软件包。",
            ),
        )
    return home


def fetch_wheels(
    home: Path,
    packages: Sequence[str],
    wheels: Path,
    recipe: EnvironmentRecipe,
    progress: Step,
    lock: int,
) -> None:
    """Fetch what is missing of the packages; each group that arrives is kept.

    A wheel gets its place when it is whole: pip copies into the folder that it is given.
    """
    arriving, scratch = wheels.parent / "arriving", wheels.parent / "tmp"
    missing = [package for package in packages if not has_wheel(wheels, package)]
    groups = [[package] for package in missing if _LARGE.match(package)]
    small = [package for package in missing if not _LARGE.match(package)]
    groups += [small[at : at + _GROUP] for at in range(0, len(small), _GROUP)]
    done, whole = len(packages) - len(missing), 1000 * len(packages)
    for group in groups:
        first = done

        def of_file(
            part: int, total: int | None, first: int = first, size: int = len(group)
        ) -> None:
            share = 1000 * size * part // total if total else 0
            progress(1000 * first + share, whole)

        requirements = write_requirements(wheels.parent / "wanted.txt", group)
        arguments = ["--python", str(home / "bin" / "python"), "download", "--no-deps"]
        arguments += ["--only-binary", ":all:", "--dest", str(arriving), "-r", str(requirements)]
        try:
            run_pip(arguments, same(recipe.name), of_file, lock, scratch)
        except AppError:
            # The package registry takes no local versions; a mirror of the user's may have them.
            if recipe.index is None or not any("+" in package for package in group):
                raise
            arguments += ["--extra-index-url", recipe.index]
            run_pip(arguments, same(recipe.name), of_file, lock, scratch)
        with local_errors(wheels):
            for wheel in arriving.glob("*.whl"):
                wheel.replace(wheels / wheel.name)
        done += len(group)
        progress(1000 * done, whole)


def has_wheel(wheels: Path, package: str) -> bool:
    """Whether the wheel of `name==version` has arrived."""
    name, _, version = package.partition("==")
    plain = re.sub(r"[-_.]+", "_", name).lower()
    public = version.replace("+", "_"), version, version.replace("+", "%2B")
    for path in wheels.glob("*.whl"):
        parts = path.name.split("-")
        if re.sub(r"[-_.]+", "_", parts[0]).lower() == plain and parts[1] in public:
            return True
    return False


def put_in(home: Path, packages: Sequence[str], wheels: Path, progress: Step, lock: int) -> None:
    """Install the wheels, and nothing that is not among them."""
    requirements = write_requirements(wheels.parent / "wanted.txt", packages)
    arguments = ["--python", str(home / "bin" / "python"), "install", "--no-deps", "--no-index"]
    arguments += ["--find-links", str(wheels), "-r", str(requirements)]
    progress(0, None)
    scratch = wheels.parent / "tmp"
    run_pip(arguments, Text("the environment", "环境"), lambda *_: progress(0, None), lock, scratch)


def begun(builds: Builds) -> list[Path]:
    """The folders of environments that were begun and not finished."""
    return sorted(builds.folder.glob(".venv-*"))
