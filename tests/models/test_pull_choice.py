"""Which quant a machine gets: the best quality that fits and is quick enough, with reasons."""

from dataclasses import replace

import pytest

from workhorse.errors import EXIT_NO, AppError
from workhorse.models.pull_choice import Choice, choose_for_machine
from workhorse.plan.compare import Compared, Fit
from workhorse.plan.wish import Wish
from workhorse.records import Estimate
from workhorse.text import Text
from workhorse.units import GIB

# Name -> bits a weight of a model of 8 GiB at 8 bits.
BITS = {"F16": 16.0, "Q8_0": 8.5, "Q6_K": 6.6, "Q4_K_M": 4.8, "Q3_K_M": 3.9}


def row(name: str, fit: Fit, tokens_per_s: float, **more: object) -> Compared:
    speed = Estimate(tokens_per_s, tokens_per_s, tokens_per_s, "tok/s", "estimated", Text("", ""))
    compared = Compared(
        name, name, name, BITS[name], int(BITS[name] * GIB), fit, "", 8192, 4, "f16", speed, speed,
        None,
    )  # fmt: skip
    return replace(compared, **more)  # type: ignore[arg-type]


def chosen(
    rows: list[Compared | AppError], memory_bytes: int = 64 * GIB, **wish: object
) -> tuple[Choice, list[str]]:
    """The choice among these, and the files whose headers were read for it."""
    names = list(BITS)[: len(rows)]
    found = dict(zip((f"m-{name}.gguf" for name in names), rows, strict=True))
    asked: list[str] = []

    def judge(file: str) -> tuple[Compared, int]:
        asked.append(file)
        outcome = found[file]
        if isinstance(outcome, AppError):
            raise outcome
        return outcome, 8192

    sizes = {f"m-{name}.gguf": int(BITS[name] * GIB) for name in names}
    choice = choose_for_machine(sizes.items(), "hf:a/b", Wish(**wish), memory_bytes, judge)  # type: ignore[arg-type]
    assert {one.option for one in choice.rejected} == set(found) - {choice.file}
    assert all(one.because.en and one.because.zh for one in choice.rejected)
    return choice, asked


def on(fits: list[Fit], speeds: list[float]) -> list[Compared | AppError]:
    return [row(name, fit, speed) for name, fit, speed in zip(BITS, fits, speeds, strict=False)]


def test_the_best_on_the_cards_goes_before_better_ones_beside_them() -> None:
    choice, asked = chosen(on(["no", "partly", "cards", "cards"], [1, 20, 60, 80]))
    assert choice.file == "m-Q6_K.gguf" and "lies on the cards whole" in choice.because.en
    assert asked == ["m-F16.gguf", "m-Q8_0.gguf", "m-Q6_K.gguf"], "the smaller one is not read"


def test_in_memory_the_best_that_is_quick_enough() -> None:
    choice, _ = chosen(on(["memory"] * 4, [4, 7, 11, 15]))
    assert choice.file == "m-Q6_K.gguf"
    why = {one.option: one.because.en for one in choice.rejected}
    assert why["m-Q8_0.gguf"].startswith("Slow: 7.00 tok/s")
    assert "no better answers" in why["m-F16.gguf"]
    assert why["m-Q4_K_M.gguf"].startswith("Smaller than needed")


def test_the_quickest_when_none_is_quick() -> None:
    choice, _ = chosen(on(["memory"] * 5, [1, 2, 3, 4, 5]))
    assert choice.file == "m-Q4_K_M.gguf", "and not one of too few bits"
    assert "None is faster" in choice.because.en
    assert chosen(on(["memory"] * 5, [1, 2, 3, 4, 5]), least_bits=3.0)[0].file == "m-Q3_K_M.gguf"


def test_the_wished_context_and_slots_are_kept() -> None:
    less = [
        row("F16", "cards", 30),
        row("Q8_0", "cards", 50, slots=1),
        row("Q6_K", "cards", 60, context_tokens=4096),
        row("Q4_K_M", "cards", 70),
    ]
    choice, _ = chosen(list(less))
    assert choice.file == "m-Q4_K_M.gguf"
    why = {one.option: one.because.en for one in choice.rejected}
    assert why["m-Q6_K.gguf"] == "Fits with 4 slots of 4096 tokens only."
    less[3] = replace(less[3], fit="no")
    less[0] = replace(less[0], fit="no")
    choice, _ = chosen(list(less))
    assert choice.file == "m-Q6_K.gguf" and "this keeps the most" in choice.because.en


def test_a_file_larger_than_the_machine_is_not_read() -> None:
    choice, asked = chosen(on(["memory"] * 4, [20] * 4), memory_bytes=8 * GIB)
    assert choice.file == "m-Q6_K.gguf" and asked == ["m-Q6_K.gguf"]


def test_none_that_fits_is_a_no() -> None:
    broken = AppError(Text("It is damaged.", "已损坏。"), Text("", ""))
    with pytest.raises(AppError, match=r"It is damaged\. m-Q8_0\.gguf: Does not fit") as caught:
        chosen([broken, row("Q8_0", "no", 1)])
    assert caught.value.exit_code == EXIT_NO
