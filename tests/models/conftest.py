"""What the download tests share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fetching import CONTENT
from file_server import FileServer, file_server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server with the file at /model; no proxy of this machine is between."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    with file_server(files={"/model": CONTENT}) as running:
        yield running


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where the file goes; its folder is not there yet."""
    return tmp_path / "models" / "model.gguf"
