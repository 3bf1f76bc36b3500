"""The pinned recipe that runs models on a card: exact versions, commands, and what it gives up."""

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


def recipes_for(capability: Capability) -> tuple[Recipe, ...]:
    """The recipes for cards of this compute capability, best first; () when none is known."""
    number = f"{capability[0]}{capability[1]}"
    fitting = [
        replace(
            recipe,
            install=tuple(line.replace("{sm}", number) for line in recipe.install),
        )
        for recipe in recipes()
        if version_range(recipe.capability).holds(Version(capability))
    ]
    return tuple(sorted(fitting, key=lambda recipe: recipe.rank))
