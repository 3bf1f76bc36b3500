"""The folder of saved states: only what is whole, unchanged and a template's own is ever used."""

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from workhorse.serve.kept_states import KeptStates, fingerprint

KEY, OTHER = "a" * 32, "b" * 32
TOKENS = (1, 20, 300)
GGSQ = 0x67677371


def state_file(path: Path, tokens: Sequence[int], more: bytes = b"kv" * 100) -> Path:
    """A file as llama-server writes it: its own four words around the tokens, then the cache."""
    words = (-1, 1, len(tokens), *tokens, 0)
    head = struct.pack("<3I", GGSQ, 4, len(words)) + struct.pack(f"<{len(words)}i", *words)
    path.write_bytes(head + more)
    return path


@pytest.fixture
def states(tmp_path: Path) -> KeptStates:
    found = KeptStates(tmp_path / "states", 10_000)
    found.prepare()
    return found


def kept(states: KeptStates, key: str, more: bytes = b"kv" * 100) -> Path:
    path = states.adopt(state_file(states.folder / f"{key}.part", TOKENS, more), key, TOKENS)
    assert path is not None
    return path


def test_what_was_kept_is_found_by_another_service(states: KeptStates) -> None:
    path = kept(states, KEY)
    assert KeptStates(states.folder, 10_000).find(KEY) == path
    assert states.find(KEY) == path
    assert states.find(OTHER) is None
    assert not list(states.folder.glob("*.part"))
    assert states.folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("tokens", [(1, 20), (1, 20, 300, 4), (1, 20, 301), ()])
def test_somebody_elses_prompt_is_not_kept(states: KeptStates, tokens: tuple[int, ...]) -> None:
    part = state_file(states.folder / "x.part", tokens)
    assert states.adopt(part, KEY, TOKENS) is None
    assert list(states.folder.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"GGUF", struct.pack("<3I", GGSQ, 4, 2**32 - 1)])
def test_another_file_is_not_kept(states: KeptStates, content: bytes) -> None:
    part = states.folder / "x.part"
    part.write_bytes(content)
    assert states.adopt(part, KEY, TOKENS) is None
    assert not part.exists()


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_file_is_a_miss_and_gone(states: KeptStates, damage: str) -> None:
    path = kept(states, KEY)
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    else:
        content[-1] ^= 1
    path.write_bytes(content)
    assert KeptStates(states.folder, 10_000).find(KEY) is None
    assert not path.exists()


def test_the_folder_is_bounded_and_what_is_declared_goes_last(states: KeptStates) -> None:
    paths = {number: kept(states, f"{number:032x}", bytes(3000)) for number in range(4)}
    for number, path in paths.items():
        os.utime(path, (number, number))
    states.trim({f"{0:032x}"})
    assert [number for number, path in paths.items() if path.exists()] == [0, 2, 3]
    states.trim(())
    foreign = states.folder / "notes.state"
    foreign.write_bytes(bytes(20_000))
    states.trim(())
    assert foreign.exists(), "what is not ours is not touched"


def test_half_written_files_of_an_earlier_service_go(states: KeptStates) -> None:
    part = state_file(states.folder / f"{KEY}.part", TOKENS)
    states.prepare()
    assert not part.exists()


def test_a_model_is_told_by_header_size_and_weights(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    size = 40 * 2**20

    def written(at: int, word: bytes, length: int = size) -> str:
        with model.open("wb") as file:
            file.truncate(length)
            file.seek(at)
            file.write(word)
        return fingerprint([model])

    told = {written(0, b"GGUF"), written(0, b"GGUG"), written(0, b"GGUF", size + 1)}
    told.add(written(size // 2, b"w"))
    assert len(told) == 4
    assert written(0, b"GGUF") in told
