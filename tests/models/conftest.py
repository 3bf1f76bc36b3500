"""What the tests of models share: the real model, fetched once by the product's own code."""

import os
from pathlib import Path

import pytest

from workhorse.models.embedded import embedded_model


@pytest.fixture(scope="session")
def real_model(request: pytest.FixtureRequest) -> Path:
    """The embedded model. WORKHORSE_TEST_DATA names a directory that has it already."""
    kept = os.environ.get("WORKHORSE_TEST_DATA")
    cache = request.config.cache
    assert cache is not None
    return embedded_model(Path(kept) if kept else Path(cache.mkdir("workhorse")))
