"""What tests of a whole service share: a small model, the fake engine as llama-server, `up`."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "models"))

from gguf_builder import llama
from service_process import StartService, running_service


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file that can be planned; the fake engine never reads it."""
    return llama().write(tmp_path_factory.mktemp("model") / "small.gguf")


@pytest.fixture
def start_service(tmp_path: Path, small_model: Path) -> Iterator[StartService]:
    """`start_service("--gap-ms", "20")` runs `up` on a fake engine with these options."""
    with ExitStack() as running:
        yield lambda *options, **told: running.enter_context(
            running_service(tmp_path, small_model, options, **told)
        )
