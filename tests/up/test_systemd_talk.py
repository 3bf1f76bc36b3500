"""What a service manager hears of a whole service, from its start to its end."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from service_process import PATIENCE_S, running_service

pytestmark = pytest.mark.timeout(1800)  # a service starts in seconds, on a busy machine in more


def test_ready_reloaded_alive_and_stopping(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(0.05)

        def until(condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not condition():
                assert time.monotonic() < deadline, heard
                try:
                    heard.extend(manager.recv(4096).decode().split("\n"))
                except TimeoutError:
                    continue

        monkeypatch.setenv("NOTIFY_SOCKET", str(address))
        monkeypatch.setenv("WATCHDOG_USEC", "300000")
        with running_service(tmp_path, small_model) as service:
            until(lambda: "READY=1" in heard)
            assert heard[0].startswith("EXTEND_TIMEOUT_USEC=")
            assert f"STATUS={service.url}/v1 small: ready" in heard
            fed = heard.count("WATCHDOG=1")
            until(lambda: heard.count("WATCHDOG=1") >= fed + 2)
            assert service.command("reload").returncode == 0
            until(lambda: heard.count("READY=1") == 2)
            assert heard.index("RELOADING=1") < len(heard) - heard[::-1].index("READY=1")
            assert service.stop() == 0
            until(lambda: "STOPPING=1" in heard)
