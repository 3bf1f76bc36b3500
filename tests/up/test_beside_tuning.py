"""A service that is started while a tuning runs."""

import os
from pathlib import Path

import pytest
from service_process import running_service

from workhorse.config import Places
from workhorse.errors import EXIT_NO
from workhorse.tune.history import one_at_a_time

pytestmark = pytest.mark.timeout(600)  # a service starts in seconds, on a busy machine in more


def test_it_names_the_tuning_and_leaves_the_memory_to_it(tmp_path: Path, small_model: Path) -> None:
    where = Places(tmp_path)
    with (
        one_at_a_time(where.tuning_lock),
        running_service(tmp_path, small_model, ready=False) as service,
    ):
        assert service.process.wait() == EXIT_NO
        said = service.text()
        assert f"process {os.getpid()}" in said
        assert f"kill {os.getpid()}" in said
        assert "goes on from there" in " ".join(said.split())
    assert not list(where.run.glob("service-*.json"))
    assert not where.logs.exists()  # no engine was started
    with running_service(tmp_path, small_model) as service:
        assert service.command("status").returncode == 0
