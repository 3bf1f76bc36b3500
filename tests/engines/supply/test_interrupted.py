"""The command is told to stop while it works: it ends in order, and nothing half stays."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_build import MISSING, Site


@pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {MISSING}")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_build_that_is_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    site = Site(tmp_path / "home")
    # cmake runs it: a configuration that takes as long as it likes and says that it has begun.
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    site.write("CMakeLists.txt", f'execute_process(COMMAND sh -c "echo y >{begun}; sleep 600")\n')
    command = [sys.executable, "-m", "workhorse", "engine", "build", "--compiler", "system"]
    environment = {**os.environ, "WORKHORSE_HOME": str(site.folder), "WORKHORSE_LANG": "en"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as making:
        assert begun.read_text() == "y\n"
        making.send_signal(number)
        _, said = making.communicate(timeout=300)
    assert making.returncode == 1
    assert "broken off" in said
    assert "Traceback" not in said
    assert site.builds.names() == []
    # The lock went with the process, and what was begun can be removed.
    removed = subprocess.run([*command[:4], "remove", "--tools"], env=environment, check=False)
    assert removed.returncode == 0
    assert [path.name for path in site.builds.folder.iterdir()] == [".lock"]
