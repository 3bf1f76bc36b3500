"""The pinned recipe that runs models on a card: exact versions, commands, and what it gives up."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from workhorse.knowledge.compat import Facts
from workhorse.knowledge.gpus import Capability, Confidence
from workhorse.knowledge.rows import rows
from workhorse.knowledge.versions import Version, version, version_range
from workhorse.text import Text

_NEEDS = frozenset({"driver", "glibc"})


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to run models on a generation of cards; see the top of `recipes.toml`."""

    id: str
    engine: Literal["llama.cpp", "vllm", "lmdeploy", "sglang"]
    capability: str
    rank: int
    versions: tuple[str, ...]
    needs: dict[str, str]
    install: tuple[str, ...]
    start: str
    gives_en: str
    gives_zh: str
    gives_up_en: str
    gives_up_zh: str
    source: str
    date: str
    confidence: Confidence
    environment: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if strange := set(self.needs) - _NEEDS:
            raise ValueError(f"{self.id}: a recipe cannot need {sorted(strange)}")
        for text in (self.capability, *self.needs.values()):
            version_range(text)

    @property
    def gives(self) -> Text:
        """Why one would take it."""
        return Text(self.gives_en, self.gives_zh)

    @property
    def gives_up(self) -> Text:
        """What one does without."""
        return Text(self.gives_up_en, self.gives_up_zh)

    def unmet(self, facts: Facts) -> tuple[str, ...]:
        """The needs that these facts do not meet; what is not known is not counted."""
        return tuple(need for need, wanted in self.needs.items() if _misses(facts, need, wanted))


def _misses(facts: Facts, need: str, wanted: str) -> bool:
    fact = facts.get(need)
    seen = version(fact) if isinstance(fact, str) else None
    return seen is not None and not version_range(wanted).holds(seen)


@cache
def recipes() -> tuple[Recipe, ...]:
    """Every recipe, as written: `{sm}` stands for the card's number."""
    return rows("recipes", "recipe", Recipe)


def recipes_for(capability: Capability, beside: Iterable[Capability] = ()) -> tuple[Recipe, ...]:
    """The recipes for cards of this compute capability, best first; () when none is known.

    `beside`: those of the other cards of the machine. What is built is built for all of them that
    the same commands can build for: code of a newer card does not run on an older one.
    """
    others = [*beside, capability]
    fitting = [
        replace(recipe, install=tuple(_for_cards(line, recipe, others) for line in recipe.install))
        for recipe in recipes()
        if _is_for(recipe, capability)
    ]
    return tuple(sorted(fitting, key=lambda recipe: recipe.rank))


def _is_for(recipe: Recipe, capability: Capability) -> bool:
    return version_range(recipe.capability).holds(Version(capability))


def _for_cards(line: str, recipe: Recipe, capabilities: Iterable[Capability]) -> str:
    """The line with the numbers of all cards that a recipe of these very commands is for."""
    alike = [other for other in recipes() if other.install == recipe.install]
    numbers = sorted(
        {
            10 * major + minor
            for major, minor in capabilities
            if any(_is_for(other, (major, minor)) for other in alike)
        }
    )

    def listed(match: re.Match[str]) -> str:
        codes = ";".join(f"{number}{match[1] or ''}" for number in numbers)
        return f'"{codes}"' if len(numbers) > 1 else codes

    return re.sub(r"\{sm\}(-real)?", listed, line)
