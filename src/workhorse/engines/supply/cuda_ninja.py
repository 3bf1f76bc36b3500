"""What ninja is told to make a plugin of CUDA files, and how far it says it is. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

PLUGIN = "libggml-cuda.so"
OBJECTS = "objects"  # ninja's name for all of them

_STEP = re.compile(r"^\[\d{1,6}/\d{1,6}\] ([\w.-]{1,120})\.(?:o|so)$")
_SAFE = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class CudaCompiler:
    """The words that compile and link CUDA code."""

    compile: tuple[str, ...]  # but for the file and `-o OBJECT`
    link: tuple[str, ...]  # but for the objects and `-o PLUGIN`
    stub: tuple[str, ...]  # that make an empty library
    runtime: str  # libcudart
    major: int  # of CUDA: the number in the names of its libraries

    @property
    def stubs(self) -> tuple[str, ...]:
        """Libraries that are there when the plugin runs, and need not be when it is linked."""
        return (f"libcublas.so.{self.major}", "libcuda.so.1")


@dataclass(frozen=True, slots=True)
class Unit:
    """One file to compile."""

    source: str  # below the source tree
    seconds: float  # expected, of one CPU

    @property
    def name(self) -> str:
        """`mmq` of `ggml/src/ggml-cuda/mmq.cu`."""
        return PurePosixPath(self.source).stem


def ninja_file(units: Sequence[Unit], compiler: CudaCompiler, tree: str) -> str:
    """What ninja is to do: each unit to an object, all objects to the plugin."""
    lines = [
        "ninja_required_version = 1.5",
        "rule compile",
        f"  command = {_command(compiler.compile)} $in -o $out",
        "  description = $out",
        "rule stub",
        f"  command = {_command(compiler.stub)} -x c /dev/null -Wl,-soname,$out -o $out",
        "  description = $out",
        "rule link",
        f"  command = {_command(compiler.link)} @$out.rsp -o $out",
        "  description = $out",
        "  rspfile = $out.rsp",
        f"  rspfile_content = $in {_quoted(compiler.runtime)}",
    ]
    for unit in units:
        lines.append(f"build {_path(unit.name)}.o: compile {_path(f'{tree}/{unit.source}')}")
    lines += [f"build {name}: stub" for name in compiler.stubs]
    objects = " ".join(f"{_path(unit.name)}.o" for unit in units)
    lines += [
        f"build {OBJECTS}: phony {objects}",
        f"build {PLUGIN}: link {objects} {' '.join(compiler.stubs)}",
    ]
    return "\n".join(lines) + "\n"


def weighted_step(units: Sequence[Unit], done_before: Iterable[str]) -> "StepWeights":
    """Ninja's lines as expected CPU-seconds: files take from 3 s to minutes."""
    left = {unit.name: unit.seconds for unit in units}
    total = sum(left.values())
    begun = sum(left.pop(name, 0.0) for name in done_before)
    return StepWeights(left, begun, total)


class StepWeights:
    """How far the work is, told line by line."""

    def __init__(self, left: dict[str, float], done: float, total: float) -> None:
        self._left, self._done, self._total = left, done, total

    def __call__(self, line: str) -> tuple[int, int] | None:
        """(CPU-seconds behind us, all) after a line such as `[3/145] mmq.o`."""
        found = _STEP.match(line)
        if found is None:
            return None
        self._done += self._left.pop(found[1], 0.0)
        return round(self._done), round(self._total)


def _command(words: Sequence[str]) -> str:
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    """For ninja, which gives it to a shell."""
    plain = word if _SAFE.fullmatch(word) else "'" + word.replace("'", "'\"'\"'") + "'"
    return plain.replace("$", "$$")


def _path(path: str) -> str:
    return path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
