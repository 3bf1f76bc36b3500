"""Facts that meet the condition of a rule, and facts that miss it in one point, from its ranges."""

from workhorse.knowledge.compat import RANGES, WORDS, Rule
from workhorse.knowledge.versions import Version, version_range

Facts = dict[str, str | frozenset[str]]


def inside(text: str) -> str:
    """A version in a range."""
    bounds = version_range(text)
    if bounds.family is not None:
        return dotted((*bounds.family.numbers, 0))
    if bounds.at_least is not None:
        return dotted(bounds.at_least.numbers)
    assert bounds.below is not None
    return dotted(just_below(bounds.below))


def outside(text: str) -> str:
    """A version next to a range."""
    bounds = version_range(text)
    if bounds.family is not None:
        return dotted((*bounds.family.numbers[:-1], bounds.family.numbers[-1] + 1, 0))
    if bounds.below is not None:
        return dotted(bounds.below.numbers)
    assert bounds.at_least is not None
    return dotted(just_below(bounds.at_least))


def just_below(bound: Version) -> tuple[int, ...]:
    numbers = list(bound.numbers)
    for position in reversed(range(len(numbers))):
        if numbers[position] > 0:
            numbers[position] -= 1
            return tuple(numbers)
        numbers[position] = 9
    raise ValueError("nothing is below 0")


def dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in numbers)


def meeting(rule: Rule) -> Facts:
    """Facts under which the rule applies."""
    facts: Facts = {}
    for key, wanted in rule.when.items():
        if key in RANGES:
            facts[key] = inside(str(wanted))
        elif key in WORDS:
            facts[key] = wanted if isinstance(wanted, str) else wanted[0]
        else:
            facts["cpu_flags"] = frozenset({"sse2", "fma"})
    return facts


def missing(rule: Rule, key: str) -> Facts:
    """The same facts but for `key`."""
    wanted = rule.when[key]
    if key in RANGES:
        return {**meeting(rule), key: outside(str(wanted))}
    if key in WORDS:
        return {**meeting(rule), key: "another"}
    return {**meeting(rule), "cpu_flags": frozenset({"sse2", str(wanted)})}
