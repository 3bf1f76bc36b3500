"""What an engine refuses of the ways in which cards share a model."""

from dataclasses import dataclass
from functools import cache

from workhorse.knowledge.rows import rows
from workhorse.records import EngineBuild, Model
from workhorse.text import Text


@dataclass(frozen=True, slots=True)
class SplitRule:
    """One refusal: it holds when every condition that it names does."""

    mode: str
    en: str
    zh: str
    source: str
    date: str
    with_form: str | None = None
    without_form: str | None = None
    without_flag: str | None = None
    architectures: tuple[str, ...] = ()

    @property
    def words(self) -> Text:
        """The refusal in both languages."""
        return Text(self.en, self.zh)

    def refuses(self, build: EngineBuild, model: Model) -> bool:
        """Whether this build refuses this model."""
        return (
            (self.with_form is None or self.with_form in build.forms)
            and (self.without_form is None or self.without_form not in build.forms)
            and (self.without_flag is None or self.without_flag not in build.knows)
            and (not self.architectures or model.architecture in self.architectures)
        )


@cache
def split_rules(mode: str) -> tuple[SplitRule, ...]:
    """What is known to be refused of `layer`, `row` or `tensor`."""
    return tuple(rule for rule in rows("split_modes", "rule", SplitRule) if rule.mode == mode)
