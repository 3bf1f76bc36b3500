"""llama.cpp's own converter at the engine's version, in an environment of its own.

Its Python files come out of the source archive that engines are built from; PyTorch and the others
(`converter.lock`) never touch ours. One folder below the tools, made once, some 1.1 GB.
"""

import re
import shutil
import sys
from importlib.resources import files
from pathlib import Path

from workhorse.engines.supply.builds import Builds
from workhorse.engines.supply.environment import make_venv
from workhorse.engines.supply.packages import run_pip, write_requirements
from workhorse.engines.supply.source import fetch_source
from workhorse.engines.supply.unpack import unpack
from workhorse.errors import AppError
from workhorse.knowledge.engine_environments import CPU, environments
from workhorse.knowledge.engine_sources import EngineSource
from workhorse.models.gguf_maker.job import Converter
from workhorse.models.part_file import check_space, local_errors, sync_folder
from workhorse.tell import Teller
from workhorse.text import Text, same

SCRIPT = "convert_hf_to_gguf.py"
_TAKEN = re.compile(r"(?:convert_hf_to_gguf\.py|LICENSE|(?:conversion|gguf-py/gguf)/[\w/]+\.py)")
# Measured 2026-11: 1.1 GB of packages, 0.4 GB of their wheels and the source archive.
NEEDED_BYTES = 1_700_000_000


def converter(tools: Path, source: EngineSource, tell: Teller) -> Converter:
    """The converter, made first when it is not there; raises AppError.

    Broken off, what was begun is removed by the next call; pip's cache has what had arrived.
    """
    # A folder of its own: what a compiler leaves unfinished beside it is not ours to sweep.
    home = tools / "converter" / source.commit
    if not home.is_dir():
        with Builds(home.parent).alone() as lock:
            if not home.is_dir():
                _make(home, source, tell, lock)
    return Converter(home / "env" / "bin" / "python", home / "source" / SCRIPT, source.commit)


def _make(home: Path, source: EngineSource, tell: Teller, lock: int) -> None:
    with Builds(home.parent).making() as scratch:
        check_space(scratch, NEEDED_BYTES)
        tell.stage(Text("fetching llama.cpp's converter", "获取 llama.cpp 的转换程序"))
        archive = fetch_source(scratch, source, tell.progress)
        depth = len(source.tree.split("/")) + 1

        def wanted(path: str) -> str | None:
            below = "/".join(path.split("/")[depth:])
            inside = "/".join(path.split("/")[1:depth]) == source.tree
            return below if inside and _TAKEN.fullmatch(below) else None

        made = scratch / "converter"
        unpack(archive, made / "source", wanted)
        archive.unlink()
        if not (made / "source" / SCRIPT).is_file():
            raise AppError(
                Text(f"{archive.name} has no {SCRIPT}.", f"{archive.name} 中没有 {SCRIPT}。"),
                Text("This version of workhorse needs another archive.", "本版本需要其他源码包。"),
            )
        tell.stage(Text("fetching PyTorch and transformers", "获取 PyTorch 与 transformers"))
        environment = make_venv(sys.executable, made / "env")
        _install(environment, scratch, tell, lock)
        with local_errors(home):
            made.rename(home)
            sync_folder(home.parent)


def _install(environment: Path, scratch: Path, tell: Teller, lock: int) -> None:
    """The pinned packages, from the user's index; PyTorch's CPU wheel also from its own."""
    text = files("workhorse.engines.supply").joinpath("converter.lock").read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    wanted = write_requirements(scratch / "wanted.txt", lines)
    arguments = ["--python", str(environment / "bin" / "python"), "install", "--no-deps"]
    arguments += ["--only-binary", ":all:", "--no-compile", "-r", str(wanted)]
    index = next(recipe.index for recipe in environments() if recipe.target == CPU)
    what = same("PyTorch, transformers")
    try:
        run_pip(arguments, what, tell.progress, lock, scratch / "tmp")
    except AppError:
        # The package registry takes no local versions (+cpu); a mirror of the user's may have it.
        shutil.rmtree(environment)
        make_venv(sys.executable, environment)
        more = ["--extra-index-url", str(index)]
        run_pip([*arguments, *more], what, tell.progress, lock, scratch / "tmp")
