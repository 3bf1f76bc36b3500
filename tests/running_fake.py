"""A fake engine for the length of a test."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from workhorse.config import HOST
from workhorse.run.process import free_port

START_S = 120.0
FakeEngine = Callable[..., str]


@contextmanager
def running_fake(*options: str) -> Iterator[str]:
    """A fake engine that answers, on a free port of loopback; its base URL without `/v1`."""
    port = free_port(HOST)
    command = [sys.executable, "-m", "workhorse.engines.fake", "--port", str(port), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as engine:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_healthy(url, engine)
            yield url
        finally:
            engine.kill()


def wait_until_healthy(url: str, engine: "subprocess.Popen[str]") -> None:
    """Ask /health until it says 200."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if engine.poll() is not None:
            _, words = engine.communicate()
            raise RuntimeError(f"the engine ended with {engine.returncode}: {words}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=START_S):
                return
        except urllib.error.HTTPError as answer:
            answer.close()  # 503: it is still loading
        except (urllib.error.URLError, ConnectionError):
            pass  # it does not listen yet
        time.sleep(0.02)
    raise RuntimeError(f"no healthy engine at {url} after {START_S} s")
