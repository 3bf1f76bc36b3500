"""Dotted versions and their ranges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.knowledge.versions import Version, version, version_range

NUMBERS = st.lists(st.integers(0, 9999), min_size=1, max_size=5).map(tuple)


@pytest.mark.parametrize(
    ("text", "numbers", "released"),
    [
        ("580.95.05", (580, 95, 5), True),
        ("0.19.1+cu128", (0, 19, 1), True),
        ("6.12.0-1-amd64", (6, 12, 0), True),
        ("5.15.0-91-generic", (5, 15, 0), True),
        ("b4935", (4935,), True),
        ("v0.30.2", (0, 30, 2), True),
        ("2.10.0a0+gitabc", (2, 10, 0), False),
        ("0.20.0rc1", (0, 20, 0), False),
        ("6.13-rc3", (6, 13), False),
        ("0.34.0.dev12+g1", (0, 34, 0), False),
        ("2.17.post1", (2, 17), True),
        ("4.18.0-553.el8_10.x86_64", (4, 18, 0), True),
    ],
)
def test_versions_as_they_are_written(text: str, numbers: tuple[int, ...], released: bool) -> None:
    assert version(text) == Version(numbers, released)


@pytest.mark.parametrize("text", ["", "N/A", "unknown", "-1", "cu128", "１２.8", "." * 99])
def test_what_is_no_version_is_unknown(text: str) -> None:
    assert version(text) is None


@pytest.mark.parametrize(
    ("text", "holds", "not_in"),
    [
        (">=7.0,<7.5", ["7.0", "7.2", "7.4.9"], ["6.9", "7.5", "7.10", "8.0"]),
        ("<580", ["470.256.02", "579.99"], ["580", "580.0", "1000"]),
        ("=470", ["470", "470.256.02", "470.0"], ["469", "471", "47", "4700"]),
        ("=9.0", ["9.0", "9", "9.0.1"], ["9.1", "90"]),
        (">=0.20.0", ["0.20.0", "0.20", "0.100"], ["0.19.9", "0.20.0rc1", "0.3"]),
        (">=12.8,<12.9", ["12.8", "12.8.93"], ["12.9", "12.10", "12.7"]),
    ],
)
def test_ranges(text: str, holds: list[str], not_in: list[str]) -> None:
    bounds = version_range(text)
    for each in holds + not_in:
        seen = version(each)
        assert seen is not None
        assert bounds.holds(seen) == (each in holds), each


@pytest.mark.parametrize(
    "text", ["", "7.0", ">7.0", "<=7.0", ">= 7.0", "7.0-7.5", ">=8,<7", ">=7,>=8", "=x", ">=7,"]
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        version_range(text)


@given(NUMBERS, NUMBERS)
def test_numbers_decide_the_order_as_padded_tuples(
    first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    pad = max(len(first), len(second))
    expected = first + (0,) * (pad - len(first)) < second + (0,) * (pad - len(second))
    assert Version(first).before(Version(second)) == expected
    assert not (Version(first).before(Version(second)) and Version(second).before(Version(first)))
    assert Version(first, released=False).before(Version(first))


@given(st.text(max_size=60))
def test_any_text_is_a_version_or_unknown(text: str) -> None:
    seen = version(text)
    assert seen is None or not seen.before(seen)
