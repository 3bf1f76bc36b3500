"""Troubles that no single line tells: they are in the figures of a service that seems to run."""

from collections.abc import Callable, Mapping
from statistics import median

from workhorse.diagnose.rank import Suspect
from workhorse.diagnose.scan import Line, Seen
from workhorse.knowledge.diagnoses import Trouble

OFFLOADED = r"offloaded (\d+)/(\d+) layers to GPU"
# llama-server's own figures of each request; the eval line is that of decode.
_SLOT = r"(?:\bid +(\d+) \| .{0,80}?)?"
PREFILL = _SLOT + r"prompt eval time =\s*([\d.]+) ms /\s*(\d+) tokens"
DECODE = _SLOT + r"(?<!prompt )\beval time =\s*([\d.]+) ms /\s*(\d+) (?:tokens|runs)"
FIT = r"context.{0,60}?(?:reduced from|lowered from|shrunk from|adjusted from) (\d+) to (\d+)"
# One piece of a streamed answer: of the OpenAI interface, of Ollama's.
PIECE = (
    r'"delta": ?\{[^{}]{0,80}?"content": ?"((?:[^"\\]|\\.){1,24})"'
    r'|"(?:content|response)": ?"((?:[^"\\]|\\.){1,24})"[^{]{0,80}?"done": ?false'
)
SERIES = (OFFLOADED, PREFILL, DECODE, FIT, PIECE)

# Fewer requests than this say nothing of a trend; the first is a warm-up.
_REQUESTS_MIN = 6
# Half the speed is beyond what context depth does to one service (decode at 8k tokens of depth
# keeps 60 to 90 % of its speed on cards, llama-bench; 2026-11).
_COLLAPSE = 0.5

# So often no sane answer says the same few pieces in a row; a cycle is at most so long.
_SAME_PIECES, _CYCLE_MAX = 24, 6

Seens = Mapping[str, Seen]


def behaving(known: Mapping[str, Trouble], seen: Seens) -> tuple[Suspect, ...]:
    """The troubles that the figures show; codes that `known` lacks are left out."""
    checks: dict[str, Callable[[Seens], tuple[float, tuple[Line, ...]] | None]] = {
        "behaviour.no_layers_on_gpu": _no_layers,
        "behaviour.layers_on_cpu": _some_layers,
        "behaviour.context_shrunk": _shrunk,
        "behaviour.decode_collapsed": lambda s: _collapsed(s, DECODE),
        "behaviour.prefill_collapsed": lambda s: _collapsed(s, PREFILL),
        "output.repeats": _repeating,
    }
    found = []
    for code, check in checks.items():
        result = check(seen)
        if result and code in known:
            found.append(Suspect(known[code], *result))
    return tuple(found)


def _offloaded(seen: Seens) -> tuple[int, int, tuple[Line, ...]] | None:
    """Layers on the GPU and in all, of the last load: the engine's own fitting loads first."""
    here = seen.get(OFFLOADED)
    if here is None or not here.groups:
        return None
    on_gpu, layers = (int(word[:9]) for word in here.groups[-1])
    return on_gpu, layers, tuple(here.samples[-1:])


def _no_layers(seen: Seens) -> tuple[float, tuple[Line, ...]] | None:
    found = _offloaded(seen)
    return (0.9, found[2]) if found and found[0] == 0 < found[1] else None


def _some_layers(seen: Seens) -> tuple[float, tuple[Line, ...]] | None:
    found = _offloaded(seen)
    return (0.9, found[2]) if found and 0 < found[0] < found[1] else None


def _shrunk(seen: Seens) -> tuple[float, tuple[Line, ...]] | None:
    here = seen.get(FIT)
    if here is None:
        return None
    smaller = any(int(after[:12]) < int(before[:12]) for before, after in here.groups)
    return (0.9, tuple(here.samples[:1])) if smaller else None


def _repeating(seen: Seens) -> tuple[float, tuple[Line, ...]] | None:
    """A streamed answer that says the same one or few pieces again and again."""
    here = seen.get(PIECE)
    if here is None:
        return None
    pieces = [first or second for first, second in here.groups]
    for cycle in range(1, _CYCLE_MAX + 1):
        same = 0
        for before, piece in zip(pieces, pieces[cycle:], strict=False):
            # Blanks and rules of tables repeat in sane answers.
            same = same + 1 if before == piece else 0
            if same >= _SAME_PIECES and any(c.isalnum() for p in pieces[-cycle:] for c in p):
                return 0.85, tuple(here.samples[-1:])
    return None


def _collapsed(seen: Seens, series: str) -> tuple[float, tuple[Line, ...]] | None:
    """Speed of the last third of the requests below half of the first third's."""
    here = seen.get(series)
    if here is None:
        return None
    requests = [
        (slot, int(tokens[:9]) / float(ms) * 1000)
        for slot, ms, tokens in here.groups
        if ms.replace(".", "", 1).isdecimal() and float(ms) > 0 and int(tokens[:9]) >= 8
    ][1:]
    if len(requests) < _REQUESTS_MIN:
        return None
    third = len(requests) // 3
    first, last = requests[:third], requests[-third:]
    # More slots at once share the speed: then a lower one of each is as it should be.
    if len({slot for slot, _ in last}) > len({slot for slot, _ in first}):
        return None
    before, after = (median(speed for _, speed in part) for part in (first, last))
    return (0.8, tuple(here.samples[:1])) if after < _COLLAPSE * before else None
