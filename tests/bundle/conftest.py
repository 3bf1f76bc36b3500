"""A small whole bundle, made once."""

from pathlib import Path

import pytest
from small_bundles import repacked, small_bundle


@pytest.fixture(scope="session")
def pip_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pip as it is installed here, as a wheel."""
    return repacked("pip", tmp_path_factory.mktemp("pip"))


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory, pip_wheel: Path) -> Path:
    """A whole small bundle; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("bundles") / "small"
    small_bundle(folder, pip_wheel)
    return folder
