"""Which quant of a repository a machine should have: the best that fits and is quick enough.

Pure: reading a header and planning is an argument.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from workhorse.errors import EXIT_NO, AppError
from workhorse.models.refusals import shown
from workhorse.plan.compare import Compared
from workhorse.plan.wish import Wish, slots_for
from workhorse.records import Rejected
from workhorse.text import Text
from workhorse.units import show_bytes, three_digits

# Twice as fast as people read: 238 words a minute (Brysbaert 2019, "How many words do we read per
# minute?", doi 10.1016/j.jml.2019.104047) at 1.33 tokens a word are 5.3 tokens a second.
QUICK_ENOUGH_TOKENS_PER_S = 10.0
WHOLE_BITS = 12.0  # more bits a weight than this: not quantised

# Reads the header of a file and plans it: what came out, and the context that was wished for.
Judge = Callable[[str], tuple[Compared, int]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The file to take, why, and why none of the others."""

    file: str
    because: Text
    rejected: tuple[Rejected, ...] = ()


def choose_for_machine(
    models: Iterable[tuple[str, int | None]],
    label: str,
    wish: Wish,
    memory_bytes: int,
    judge: Judge,
) -> Choice:
    """The best quality that fits with the wished context and slots.

    `models` are first files with the bytes of all parts, as `gguf_models` finds them.

    What lies whole on the cards goes before what does not; of the rest the best that is quick
    enough, else the quickest. Files are judged from the largest on, and only as many as it takes.
    `memory_bytes` is all that the machine has. Raises AppError when none fits.
    """
    search = _Search(wish, memory_bytes)
    for first, size in sorted(models, key=lambda model: (-(model[1] or 0), model[0])):
        search.look_at(first, size, judge)
    return search.outcome(label)


class _Search:
    """What was found so far, from the largest file on."""

    def __init__(self, wish: Wish, memory_bytes: int) -> None:
        self._wish = wish
        self._memory_bytes = memory_bytes
        self._found: tuple[str, Compared] | None = None
        self._enough = False  # nothing smaller can be better
        self._too_few_bits = False
        self._whole: list[tuple[str, int | None]] = []  # not quantised: only if nothing else is
        self._slow: list[tuple[str, Compared]] = []
        self._cut: list[tuple[str, Compared]] = []  # only with less context or fewer slots
        self._why: dict[str, Text] = {}

    def look_at(self, file: str, size: int | None, judge: Judge) -> None:
        """The next smaller file."""
        if self._enough:
            self._why[file] = Text(
                "Smaller than needed: it would lose quality.", "小于所需：会损失质量。"
            )
            return
        if self._too_few_bits:
            self._why[file] = self._few()
            return
        if size is not None and size > self._memory_bytes:
            self._why[file] = Text(
                f"{show_bytes(size)}; this machine has {show_bytes(self._memory_bytes)} in all.",
                f"{show_bytes(size)}，而本机内存与显存合计 {show_bytes(self._memory_bytes)}。",
            )
            return
        try:
            row, context = judge(file)
        except AppError as error:
            self._why[file] = error.what
            return
        self._weigh(file, row, context)

    def _weigh(self, file: str, row: Compared, context: int) -> None:
        speed = row.decode_tokens_per_s
        rate = Text(f"{_rate(row)} predicted", f"预测 {_rate(row)}")
        if row.bits_a_weight < self._wish.least_bits:
            self._too_few_bits = True
            self._why[file] = self._few()
        elif row.fit == "no":
            self._why[file] = Text("Does not fit this machine.", "本机放不下。")
        elif row.context_tokens < context or row.slots < slots_for(self._wish):
            self._cut.append((file, row))
            self._why[file] = Text(
                f"Fits with {row.slots} slots of {row.context_tokens} tokens only.",
                f"仅能容纳 {row.slots} 个槽位、各 {row.context_tokens} 词元。",
            )
        elif row.bits_a_weight > WHOLE_BITS:
            self._slow.append((file, row))
            self._why[file] = Text(
                f"Twice the memory and time of 8 bits for no better answers; {rate.en}.",
                f"占用与耗时是 8 位的两倍，回答却并不更好；{rate.zh}。",
            )
        elif row.fit != "cards" and speed is not None and speed.value < QUICK_ENOUGH_TOKENS_PER_S:
            self._slow.append((file, row))
            self._why[file] = Text(f"Slow: {rate.en}.", f"较慢：{rate.zh}。")
        elif row.fit == "partly":
            # One that lies on the cards whole may still come; this is the best of the others.
            if self._found is None:
                self._found = file, row
            self._why[file] = Text(
                f"Only in part on the cards: {rate.en}.", f"仅部分在显卡上：{rate.zh}。"
            )
        else:
            if row.fit == "cards" or self._found is None:
                self._found = file, row
            self._enough = True

    def _few(self) -> Text:
        least = three_digits(self._wish.least_bits)
        return Text(
            f"Fewer than {least} bits a weight loses too much; name it with --quant to take it.",
            f"每权重不足 {least} 位，质量损失过大；若仍要使用，请用 --quant 指定。",
        )

    def outcome(self, label: str) -> Choice:
        """The choice; AppError when nothing is left."""
        if self._found is not None:
            file, row = self._found
            where = {
                "cards": Text("lies on the cards whole", "可整个放入显卡"),
                "partly": Text("is quick enough with a part in memory", "部分放在内存仍足够快"),
            }.get(row.fit, Text("fits the memory and is quick enough", "内存放得下且足够快"))
            because = Text(
                f"The best quality that {where.en}: {_told(row).en}.",
                f"{where.zh}的最佳质量：{_told(row).zh}。",
            )
        elif self._slow:
            file, row = max(self._slow, key=lambda one: _value(one[1]))
            because = Text(
                f"None is faster: {_told(row).en}.", f"其余都不比它快：{_told(row).zh}。"
            )
        elif self._cut:
            file, row = max(
                self._cut, key=lambda one: (one[1].slots * one[1].context_tokens, _value(one[1]))
            )
            because = Text(
                f"None fits with all that was wished; this keeps the most: {_told(row).en}.",
                f"没有一个能满足全部要求，此项保留最多：{_told(row).zh}。",
            )
        else:
            raise self._none(label)
        return Choice(file, because, _rejected(self._why, file))

    def _none(self, label: str) -> AppError:
        why = [f"{shown(file)}: {text.en}" for file, text in self._why.items()][:6]
        zh = [f"{shown(file)}：{text.zh}" for file, text in self._why.items()][:6]
        return AppError(
            Text(
                f"None of the models of {shown(label)} is for this machine. " + " ".join(why),
                f"{shown(label)} 中没有适合本机的模型。" + "".join(zh),
            ),
            Text(
                "Take a smaller model, or name one of these with --quant.",
                "请选用更小的模型，或用 --quant 指定其中之一。",
            ),
            exit_code=EXIT_NO,
        )


def _rejected(why: Mapping[str, Text], taken: str) -> tuple[Rejected, ...]:
    others: Iterable[tuple[str, Text]] = why.items()
    return tuple(Rejected(shown(file), text) for file, text in others if file != taken)


def _value(row: Compared) -> float:
    return row.decode_tokens_per_s.value if row.decode_tokens_per_s else 0.0


def _rate(row: Compared) -> str:
    speed = row.decode_tokens_per_s
    return "—" if speed is None else f"{three_digits(speed.value)} tok/s"


def _told(row: Compared) -> Text:
    bits, size = three_digits(row.bits_a_weight), show_bytes(row.weight_bytes)
    lost = (
        Text("", "") if row.quality is None else Text(f", {row.quality.en}", f"，{row.quality.zh}")
    )
    return Text(
        f"{bits} bits a weight, {size}, {row.slots} slots of {row.context_tokens} tokens, "
        f"{_rate(row)} predicted{lost.en}",
        f"每权重 {bits} 位，{size}，{row.slots} 个槽位、各 {row.context_tokens} 词元，"
        f"预测 {_rate(row)}{lost.zh}",
    )
