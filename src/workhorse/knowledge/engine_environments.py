"""Environments of engines that come as Python packages: what is pinned for which cards."""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from workhorse.knowledge.gpus import Capability
from workhorse.knowledge.rows import rows
from workhorse.knowledge.versions import Version, version_range

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class EnvironmentRecipe:
    """One environment that can be installed; the columns are explained in the table."""

    name: str
    engine: Literal["vllm", "lmdeploy"]
    version: str
    target: str
    rank: int
    module: str
    needs_flags: tuple[str, ...]
    needs: dict[str, str]
    download_bytes: int
    disk_bytes: int
    tried: bool
    source: str
    date: str
    index: str | None = None

    def __post_init__(self) -> None:
        for text in self.needs.values():
            version_range(text)
        if self.target != CPU:
            for text in self.target.split("|"):
                version_range(text)

    def is_for(self, capability: Capability | None) -> bool:
        """Whether it computes on a card of this capability; None: on the CPU."""
        if capability is None or self.target == CPU:
            return capability is None and self.target == CPU
        return holds(self.target, capability)

    def pythons(self) -> tuple[str, ...]:
        """The Pythons for which its packages are pinned, `3.11` …, the oldest first."""
        folder = files("workhorse.knowledge").joinpath(f"locks/{self.name}")
        names = (file.name.removesuffix(".txt") for file in folder.iterdir())
        return tuple(sorted(names, key=lambda name: tuple(map(int, name.split(".")))))

    def packages(self, python: str) -> tuple[str, ...]:
        """Every package that it holds for a Python, as `name==version`."""
        path = f"locks/{self.name}/{python}.txt"
        text = files("workhorse.knowledge").joinpath(path).read_text("utf-8")
        return tuple(re.findall(r"(?m)^[\w.-]+==\S+$", text))


def holds(target: str, capability: Capability) -> bool:
    """Whether a card's compute capability is in one of the ranges of a target."""
    wanted = Version(capability)
    return any(version_range(text).holds(wanted) for text in target.split("|"))


@cache
def environments() -> tuple[EnvironmentRecipe, ...]:
    """Every environment, the one to prefer first."""
    found = rows("engine_environments", "environment", EnvironmentRecipe)
    return tuple(sorted(found, key=lambda recipe: recipe.rank))


def environments_for(engine: str, capability: Capability | None) -> tuple[EnvironmentRecipe, ...]:
    """Those of an engine for a card (None: the CPU), the one to prefer first."""
    return tuple(r for r in environments() if r.engine == engine and r.is_for(capability))
