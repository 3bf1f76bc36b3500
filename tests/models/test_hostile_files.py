"""Files that are cut off, damaged, hostile or no models: one AppError each, and little memory."""

import errno
import os
import random
import resource
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_builder import ARR, BOOL, F32, I32, I64, STR, U8, U32, U64, Gguf, array, llama, text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workhorse.errors import AppError
from workhorse.models.gguf import describe, read_gguf
from workhorse.models.header import read_header
from workhorse.records import Model
from workhorse.units import MIB

MEMORY_BYTES_MAX = 100 * MIB


def read_bytes(raw: bytes, size_bytes: int | None = None) -> Model:
    """The model in `raw`, as if it were a file of `size_bytes` (zeros after the end)."""
    size = len(raw) if size_bytes is None else size_bytes

    def read_at(offset: int, wanted: int) -> bytes:
        n_bytes = max(0, min(wanted, size - offset))
        return raw[offset : offset + n_bytes].ljust(n_bytes, b"\0")

    return describe([read_header(read_at, size, name="raw")], Path("raw"))


def refusal(raw: bytes, size_bytes: int | None = None) -> str:
    """The words with which a file is refused, in both languages; the memory bound holds."""
    tracemalloc.start()
    try:
        with pytest.raises(AppError) as caught:
            read_bytes(raw, size_bytes)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < MEMORY_BYTES_MAX
    for words in (caught.value.what, caught.value.next_step):
        assert words.en and words.zh
        assert words.en.isprintable() and words.zh.isprintable()
    return caught.value.what.en


def rich() -> Gguf:
    """A small file with every kind of value."""
    file = llama(layers=2, architecture="gemma3", kv_heads=None)
    file.list("gemma3.attention.head_count_kv", I32, [1, 2])
    file.key("gemma3.attention.sliding_window", U32, 512)
    file.list("gemma3.attention.sliding_window_pattern", BOOL, [True, False])
    file.key("gemma3.attention.key_length", U64, 16)
    file.key("gemma3.rope.freq_base", F32, 10_000.0)
    file.key("tokenizer.chat_template", STR, "{{ bos_token }}{{ messages }}")
    file.list("tokenizer.ggml.scores", F32, [0.5] * 10)
    file.key("general.file_type", U8, 7).key("general.alignment", U32, 32)
    return file


# ---------------------------------------------------------------- cut off


def test_every_point_of_truncation_is_refused() -> None:
    raw = rich().build()
    assert read_bytes(raw).layers == 2
    assert rich().tensors[-1][1] == (64,)  # its 256 bytes end the file, no padding after them
    for end in range(len(raw)):
        with pytest.raises(AppError):
            read_bytes(raw[:end])


@pytest.mark.real
def test_truncations_of_the_real_header_are_refused(real_model: Path) -> None:
    with real_model.open("rb") as file:
        raw = file.read(2 * MIB)
    for end in range(0, len(raw), 50_021):
        with pytest.raises(AppError):
            read_bytes(raw[:end])


def test_the_error_says_how_much_is_missing(tmp_path: Path) -> None:
    path = llama().tensor("big.weight", (1024, 1024)).write(tmp_path / "a.gguf")
    os.truncate(path, 2 * MIB)
    with pytest.raises(AppError) as caught:
        read_gguf(path)
    assert "describes 4.01 MiB, the file has 2.00 MiB" in caught.value.what.en
    assert "Download it again" in caught.value.next_step.en


def test_a_file_that_shrinks_while_it_is_read() -> None:
    raw = llama().build()
    with pytest.raises(AppError, match="incomplete"):
        read_header(lambda offset, size: raw[:40][offset : offset + size], len(raw), name="raw")


# ---------------------------------------------------------------- hostile


def with_key(name: str, raw_value: bytes) -> Gguf:
    file = llama()
    file.keys.append((name, raw_value))
    return file


def with_value(name: str, kind: int, value: object) -> Gguf:
    return llama().without(name).key(name, kind, value)


def claims(**fields: object) -> Gguf:
    file = llama()
    for name, value in fields.items():
        setattr(file, name, value)
    return file


def endless_text() -> Gguf:
    return with_key("k", struct.pack("<IQ", STR, 2**64 - 1))


def endless_template() -> Gguf:
    return with_key("tokenizer.chat_template", struct.pack("<IQ", STR, 2**62))


def endless_list(kind: int, count: int) -> Gguf:
    return with_key("k", struct.pack("<IIQ", ARR, kind, count))


def twice(what: str) -> Gguf:
    file = llama()
    if what == "key":
        return file.key("general.name", STR, "again")
    return file.tensor("token_embd.weight", (32,))


HOSTILE: dict[str, tuple[Callable[[], Gguf], str]] = {
    "tensor count": (lambda: claims(tensor_count=2**63), "9223372036854775808 tensors"),
    "key count": (lambda: claims(key_count=2**40), "keys"),
    "more keys than there are": (lambda: claims(key_count=5000), "raw"),
    "fewer keys than there are": (lambda: claims(key_count=2), "raw"),
    "long text": (endless_text, "behind the end"),
    "long kept text": (endless_template, "believable"),
    "long list of numbers": (lambda: endless_list(U64, 2**61), "behind the end"),
    "overflowing list of numbers": (lambda: endless_list(U64, 2**64 - 1), "behind the end"),
    "long list of texts": (lambda: endless_list(STR, 2**60), "behind the end"),
    "list of lists": (lambda: endless_list(ARR, 1), "list of lists"),
    "unknown value type": (lambda: with_key("k", struct.pack("<I", 13)), "unknown value type 13"),
    "unknown entry type": (lambda: endless_list(99, 1), "unknown value type 99"),
    "empty key": (lambda: with_key("", struct.pack("<IB", U8, 1)), "empty"),
    "long key": (lambda: with_key("k" * 2000, struct.pack("<IB", U8, 1)), "believable"),
    "key twice": (lambda: twice("key"), "twice"),
    "tensor twice": (lambda: twice("tensor"), "twice"),
    "long tensor name": (lambda: llama().tensor("x" * 64, (32,)), "believable"),
    "five dimensions": (lambda: llama().tensor("x", (1, 1, 1, 1, 1)), "5 dimensions"),
    "no elements": (lambda: llama().tensor("x", (32, 0)), "impossible shape"),
    "overflowing shape": (lambda: llama().tensor("x", (2**32, 2**32)), "impossible shape"),
    "huge shape": (lambda: llama().tensor("x", (2**31, 2**31)), "incomplete"),
    "unknown tensor type": (lambda: llama().tensor("x", (32,), 4711), "type 4711"),
    "removed tensor type": (lambda: llama().tensor("x", (32,), 31), "q4_0_4_4"),
    "part of a block": (lambda: llama().tensor("x", (33,), 2), "whole q4_0 blocks"),
    "odd offset": (lambda: claims(offsets={"blk.0.attn_q.weight": 705}), "is at 705"),
    "overlap": (lambda: claims(offsets={"blk.1.attn_q.weight": 0}), "is at 0"),
    "far offset": (lambda: claims(offsets={"blk.1.attn_q.weight": 2**64 - 32}), "is at 184467"),
    "alignment zero": (lambda: with_value("general.alignment", U32, 0), "power of two"),
    "alignment odd": (lambda: with_value("general.alignment", U32, 48), "power of two"),
    "alignment as text": (lambda: with_value("general.alignment", STR, "x"), "power of two"),
    "alignment too wide": (lambda: with_value("general.alignment", U64, 32), "32-bit"),
    "alignment enormous": (
        lambda: with_value("general.alignment", U32, 2**31),
        "not at 2147483648",
    ),
    "no architecture": (lambda: llama().without("general.architecture"), "no architecture"),
    "architecture a number": (lambda: with_value("general.architecture", U32, 1), "not a text"),
    "no layers": (lambda: llama().without("llama.block_count"), "block_count is missing"),
    "zero layers": (lambda: with_value("llama.block_count", U32, 0), "block_count is missing"),
    "many layers": (lambda: with_value("llama.block_count", U32, 2**32 - 1), "layers"),
    "layers a fraction": (lambda: with_value("llama.block_count", F32, 2.0), "not a count"),
    "layers negative": (lambda: with_value("llama.block_count", I64, -2), "not a count"),
    "layers a list": (
        lambda: llama().without("llama.block_count").list("llama.block_count", U32, [1]),
        "not a count",
    ),
    "context too large": (lambda: with_value("llama.context_length", U64, 2**40), "not a count"),
    "name a number": (lambda: with_value("general.name", U32, 1), "not a text"),
    "template a list": (
        lambda: with_key("tokenizer.chat_template", array(STR, ["x"])),
        "not a text",
    ),
    "hostile names": (
        lambda: with_key("\x1b[31m\n", struct.pack("<IIQ", ARR, ARR, 1)),
        "list of lists",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers_are_refused_in_words(case: str) -> None:
    build, words = HOSTILE[case]
    assert words in refusal(build().header(), 10**15 if "huge" not in case else None)


@pytest.mark.parametrize("case", ["long text", "long list of texts", "long list of numbers"])
def test_lengths_are_checked_against_the_real_end(case: str) -> None:
    assert "raw is incomplete" in refusal(HOSTILE[case][0]().build())


def test_an_endless_list_of_empty_texts_in_an_enormous_file() -> None:
    header = Gguf(key_count=2)
    header.keys.append(("k", struct.pack("<IIQ", ARR, STR, 10**10)))
    assert "longer than 64.0 MiB" in refusal(header.header(), 10**12)


def test_as_many_tensors_and_keys_as_are_allowed_fit_the_memory() -> None:
    file = llama()
    for number in range(65_000):
        file.tensors.append((f"{number:063d}", (1, 1, 1, 1), 0))
    for number in range(9_900):
        file.key(f"{number:01000d}", U32, 2**31)
    raw = file.header()
    size_bytes = len(raw) + file.data_bytes() + 32
    tracemalloc.start()
    try:
        assert len(read_bytes(raw, size_bytes).tensors) == 65_005
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES_MAX
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- mutated

SEED_FILE = rich().build()
HEADER_BYTES = len(rich().header())
# Numbers that break readers: ends of ranges, one more and one less.
EDGES = (0, 1, 2**7, 2**8 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def mutated(chance: random.Random) -> bytes:
    """The seed file with one to four changes in its header."""
    raw = bytearray(SEED_FILE)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(min(HEADER_BYTES, len(raw)) or 1)
        match chance.randrange(6):
            case 0:
                raw[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                raw[at : at + 1] = bytes([raw[at] ^ (1 << chance.randrange(8))]) if raw else b""
            case 2:
                width = chance.choice((1, 2, 4, 8))
                raw[at : at + width] = (chance.choice(EDGES) % 2 ** (8 * width)).to_bytes(
                    width, "little"
                )
            case 3:
                del raw[at : at + chance.randint(1, 16)]
            case 4:
                raw[at:at] = chance.randbytes(chance.randint(1, 16))
            case _:
                source = chance.randrange(HEADER_BYTES)
                raw[at : at + 16] = SEED_FILE[source : source + 16]
    return bytes(raw)


def resident_bytes_max() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(min_value=0, max_value=2**32 - 1))
def test_ten_thousand_mutated_headers_give_a_model_or_an_error(seed: int) -> None:
    chance = random.Random(seed)
    before_bytes = resident_bytes_max()
    for _ in range(100):
        raw = mutated(chance)
        try:
            model = read_bytes(raw)
        except AppError as error:
            assert error.what.en.isprintable() and error.what.zh.isprintable()
        else:
            assert model.layers == len(model.attention) <= 512
            assert model.vocabulary > 0
    assert resident_bytes_max() - before_bytes < MEMORY_BYTES_MAX


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=512))
def test_any_bytes_after_the_magic_give_an_error(raw: bytes) -> None:
    with pytest.raises(AppError):
        read_bytes(b"GGUF\x03\0\0\0" + raw)


@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=200))
def test_any_bytes_at_all_give_an_error(raw: bytes) -> None:
    with pytest.raises(AppError):
        read_bytes(raw)


# ---------------------------------------------------------------- no GGUF at all

FOREIGN = {
    "empty": (b"", "an empty file"),
    "safetensors": (struct.pack("<Q", 12) + b'{"a":{"b":1}}', "safetensors"),
    "zip": (b"PK\x03\x04" + bytes(30), "PyTorch checkpoint or a wheel"),
    "pickle": (b"\x80\x02}q\x00", "old PyTorch"),
    "html": (b"\n<!DOCTYPE html>\n<html><body>Sign in</body></html>", "web page"),
    "json": (b'{"error": "Invalid credentials"}', "JSON"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS"),
    "ggml": (b"lmgg" + bytes(30), "GGML file of 2023"),
    "ggjt": (b"tjgg" + bytes(30), "GGJT"),
    "gzip": (b"\x1f\x8b\x08" + bytes(30), "gzip"),
    "program": (b"\x7fELF" + bytes(30), "program"),
    "zeros": (bytes(4096), "zeros"),
    "noise": (b"\x01\x02\x03\x04\x05\x06\x07\x08\x09", "01 02 03 04 05 06 07 08"),
    "half the magic": (b"GG", "only 2 bytes"),
    "big-endian": (b"GGUF\0\0\0\x03" + bytes(60), "big-endian"),
    "version 1": (b"GGUF\x01\0\0\0" + bytes(60), "version 1"),
    "version 9": (b"GGUF\x09\0\0\0" + bytes(60), "version 9"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_a_foreign_file_looks_like(case: str, tmp_path: Path) -> None:
    raw, words = FOREIGN[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    with pytest.raises(AppError) as caught:
        read_gguf(path)
    assert words in caught.value.what.en
    assert str(path) in caught.value.what.en and str(path) in caught.value.what.zh
    assert caught.value.next_step.en


def test_paths_that_are_no_readable_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.gguf"
    os.mkfifo(fifo)
    loop = tmp_path / "loop.gguf"
    loop.symlink_to(loop)
    cases = {
        tmp_path: "is a directory",
        fifo: "not a regular file",
        Path("/dev/zero"): "not a regular file",
        tmp_path / "none.gguf": "No such file",
        loop: "cannot be read",
        tmp_path / ("x" * 300): "cannot be read",
        tmp_path / "a\0b": "cannot be read",
        llama().write(tmp_path / "a.gguf") / "b.gguf": "cannot be read",
    }
    for path, words in cases.items():
        with pytest.raises(AppError, match=words) as caught:
            read_gguf(path)
        assert caught.value.what.en.isprintable()


def test_a_file_that_this_user_may_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = llama().write(tmp_path / "a.gguf")

    def forbid(*_arguments: object) -> int:  # root may read everything, whatever the mode says
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", forbid)
    with pytest.raises(AppError, match="Permission denied") as caught:
        read_gguf(path)
    assert "chmod" in caught.value.next_step.en


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = llama().write(tmp_path / os.fsdecode(b"caf\xe9.gguf"))
    with pytest.raises(AppError, match="not UTF-8"):
        read_gguf(path)


def test_texts_are_written_as_the_format_has_them() -> None:
    # The builder is the tests' own oracle: the magic, a version, one key, by hand.
    by_hand = b"GGUF\x03\0\0\0" + bytes(8) + b"\x01" + bytes(7) + b"\x01" + bytes(7) + b"k"
    by_hand += b"\x08\0\0\0" + b"\x02" + bytes(7) + b"ab"
    assert Gguf().key("k", STR, "ab").build() == by_hand
    assert text("ab") == b"\x02" + bytes(7) + b"ab"
