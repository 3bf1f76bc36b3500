"""What cmake and ninja are told, and what they say."""

import pytest

from workhorse.engines.supply.recipe import build_name, failure, jobs, options, step
from workhorse.knowledge.cpu_variants import variants
from workhorse.knowledge.engine_sources import llamacpp_source

SOURCE = llamacpp_source()
AVX2 = next(variant for variant in variants() if variant.name == "avx2")


def switches(words: tuple[str, ...]) -> dict[str, str]:
    return dict(word[2:].split("=", 1) for word in words)


def test_a_variant_names_every_instruction_set() -> None:
    told = switches(options(AVX2, SOURCE, openmp=False))
    assert (told["GGML_AVX2"], told["GGML_AVX512"], told["GGML_NATIVE"]) == ("ON", "OFF", "OFF")
    assert told["GGML_OPENMP"] == "OFF"
    assert (told["LLAMA_BUILD_NUMBER"], told["LLAMA_BUILD_COMMIT"]) == ("0", "0c1e57098")
    # No option may ask the network while it builds.
    assert (told["LLAMA_USE_PREBUILT_UI"], told["LLAMA_BUILD_UI"]) == ("OFF", "OFF")


def test_native_leaves_the_choice_to_the_compiler() -> None:
    told = switches(options(None, SOURCE, openmp=True))
    assert (told["GGML_NATIVE"], told["GGML_AVX2"], told["GGML_OPENMP"]) == ("ON", "OFF", "ON")


def test_all_variants_are_told_the_same_words() -> None:
    """One folder serves them in turn only when none leaves a switch as the last one had it."""
    keys = [set(switches(options(v, SOURCE, openmp=False))) for v in (*variants(), None)]
    assert all(key == keys[0] for key in keys)


def test_names() -> None:
    assert build_name(AVX2, SOURCE) == "llama.cpp-0c1e57098-avx2"
    assert build_name(None, SOURCE) == "llama.cpp-0c1e57098-native"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("[3/229] Building CXX object a.cpp.o\n", (3, 229)),
        ("[1/1] Linking", (1, 1)),
        ("-- Configuring done", None),
        ("  [3/229] in a message", None),
        ("[9999999/1]", None),
    ],
)
def test_steps(line: str, found: tuple[int, int] | None) -> None:
    assert step(line) == found


@pytest.mark.parametrize(
    ("asked", "cpus", "available_gib", "expected"),
    [(None, 8, 32, 8), (None, 8, 5, 5), (None, 8, 0, 1), (3, 8, 1, 3), (None, 4, None, 4)],
)
def test_jobs(asked: int | None, cpus: int, available_gib: int | None, expected: int) -> None:
    available = None if available_gib is None else available_gib * 1024**3
    assert jobs(asked, cpus, available) == expected


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["[1/2] a", "FAILED: a.o", "a.cpp:1:1: error: no such type", "ninja: stopped"], "no such"),
        (["CMake Error at CMakeLists.txt:1 (x):", "  bad"], "CMake Error at"),
        (["ninja: error: cannot make it"], "cannot make it"),
        (["x", "fatal: write failed: No space left on device", "a: error: y"], "No space left"),
        (["the last word", ""], "the last word"),
        ([], "it said nothing"),
    ],
)
def test_the_line_that_says_why(lines: list[str], words: str) -> None:
    assert words in failure(lines)
