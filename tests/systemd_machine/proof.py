"""What a unit of the service does where systemd is the first process: run there by `boot.py`.

proof.py FOLDER_OF_MODEL_TESTS FOLDER_FOR_RESULTS BOOT
"""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODEL_TESTS, OUT, BOOT = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
HOME = Path("/srv/workhorse")
MODEL, ENGINE, CONFIG = HOME / "small.gguf", HOME / "bin" / "llama-server", HOME / "w.toml"
PORT = 8899
URL = f"http://127.0.0.1:{PORT}"
WATCHDOG_S = 5  # of the unit 60: shorter here, by a file beside it
PATIENCE_S = 120.0

Json = dict[str, Any]
seen: dict[str, Json] = {}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """A command and what it said."""
    env = {**os.environ, "WORKHORSE_HOME": str(HOME), "WORKHORSE_LANG": "en"}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def workhorse(*words: str) -> subprocess.CompletedProcess[str]:
    """Our own command, as its user runs it."""
    done = run(sys.executable, "-m", "workhorse", *words)
    print(
        "$ workhorse", *words, done.returncode, done.stdout[-500:], done.stderr[-1500:], flush=True
    )
    return done


def unit(*names: str) -> Json:
    """What systemd says of the unit."""
    shown = run("systemctl", "show", "workhorse.service", "-p", ",".join(names)).stdout
    return dict(line.split("=", 1) for line in shown.splitlines())


def pid() -> int:
    """The unit's main process; 0: none."""
    return int(unit("MainPID")["MainPID"])


def engines() -> list[int]:
    """The engines that run."""
    said = run("pgrep", "-f", "workhorse.engines.fake").stdout
    return [int(one) for one in said.split()]


def ask(tokens: int, told: list[Any]) -> None:
    """One answer; its number of words, or what went wrong."""
    body = {"prompt": "go on", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(
        f"{URL}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            for line in answer:
                if line.startswith(b"data: {") and b'"text":""' not in line:
                    told.append(line)
    except (OSError, urllib.error.URLError) as error:
        told.append(repr(error))


def answers() -> bool:
    """Does the service answer?"""
    told: list[Any] = []
    ask(3, told)
    return len(told) == 3


def until(holds: Callable[[], object]) -> float:
    """Seconds until something held; raises when it never did."""
    began_s = time.monotonic()
    while not holds():
        if time.monotonic() - began_s > PATIENCE_S:
            raise TimeoutError(unit("ActiveState", "SubState", "Result", "StatusText"))
        time.sleep(0.05)
    return round(time.monotonic() - began_s, 2)


def prepare() -> None:
    """A model, a program that is called like llama-server, settings."""
    sys.path.append(MODEL_TESTS)
    from gguf_builder import llama

    ENGINE.parent.mkdir(parents=True)
    llama().write(MODEL)
    known = " ".join(f'"{name} N"' for name in ("--ctx-size", "--parallel", "--model", "--port"))
    ENGINE.write_text(
        "#!/bin/sh\n"
        f'case "$1" in\n--help) printf "%s\\n" {known} "--host H" "--api-key KEY";;\n'
        "--version) echo version: 1;;\n"
        f'*) exec {sys.executable} -m workhorse.engines.fake --ignore-unknown "$@" --gap-ms 20;;\n'
        "esac\n"
    )
    ENGINE.chmod(ENGINE.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    CONFIG.write_text(f'[[model]]\nmodel = "{MODEL}"\nslots = 2\n')


def installed() -> Json:
    """`service install` starts the unit, which says itself when it is ready."""
    prepare()
    words = ("--config", str(CONFIG), "--engine", str(ENGINE), "--port", str(PORT))
    done = workhorse("service", "install", *words)
    beside = Path("/etc/systemd/system/workhorse.service.d")
    beside.mkdir()
    (beside / "short.conf").write_text(f"[Service]\nWatchdogSec={WATCHDOG_S}\nRestartSec=1\n")
    run("systemctl", "daemon-reload")
    run("systemctl", "restart", "workhorse.service")
    facts = unit("ActiveState", "Type", "WatchdogUSec", "StatusText", "NRestarts")
    environment = Path(f"/proc/{pid()}/environ").read_text()
    good = done.returncode == 0 and facts["ActiveState"] == "active" and answers()
    return facts | {
        "good": good and "ready" in facts["StatusText"] and "WATCHDOG_USEC" in environment,
        "exit code": done.returncode,
    }


def reloaded() -> Json:
    """`systemctl reload` with other settings: another engine, the same service, no refusal."""
    main, before = pid(), engines()
    told: list[Any] = []
    asking = threading.Thread(target=ask, args=(100, told))
    asking.start()
    CONFIG.write_text(CONFIG.read_text().replace("slots = 2", "slots = 3"))
    began_s = time.monotonic()
    done = run("systemctl", "reload", "workhorse.service")
    took_s = round(time.monotonic() - began_s, 2)
    asking.join()
    after = engines()
    good = done.returncode == 0 and pid() == main and len(after) == 1 and after != before
    facts = unit("ActiveState", "NRestarts")
    return facts | {
        "good": good and len(told) == 100 and facts["ActiveState"] == "active" and answers(),
        "seconds": took_s,
        "tokens of the answer that ran": len(told),
        "said": done.stderr,
    }


def watched() -> Json:
    """A service that does nothing any more is ended by the watchdog and started again."""
    main = pid()
    os.kill(main, signal.SIGSTOP)
    gone_s = until(lambda: pid() != main)
    back_s = until(
        lambda: pid() not in (0, main) and unit("ActiveState")["ActiveState"] == "active"
    )
    said = run("journalctl", "-u", "workhorse", "--no-pager", "-o", "cat").stdout
    left = engines()
    return {
        "good": "watchdog" in said.lower() and len(left) == 1 and answers(),
        "ended after s": gone_s,
        "ready again after further s": back_s,
        "NRestarts": unit("NRestarts")["NRestarts"],
        "engines": len(left),
    }


def killed() -> Json:
    """SIGKILL: started again, and the engine of the dead one is not left."""
    main = pid()
    os.kill(main, signal.SIGKILL)
    back_s = until(
        lambda: pid() not in (0, main) and unit("ActiveState")["ActiveState"] == "active"
    )
    return {"good": len(engines()) == 1 and answers(), "ready again after s": back_s}


def stopped() -> Json:
    """`systemctl stop` lets a running answer come to its end."""
    told: list[Any] = []
    asking = threading.Thread(target=ask, args=(150, told))  # three seconds
    asking.start()
    until(lambda: told)
    began_s = time.monotonic()
    run("systemctl", "stop", "workhorse.service")
    took_s = round(time.monotonic() - began_s, 2)
    asking.join()
    facts = unit("ActiveState", "Result")
    good = len(told) == 150 and facts["Result"] == "success" and not engines()
    return facts | {"good": good, "tokens": len(told), "seconds": took_s}


def refused() -> Json:
    """Settings that are wrong: it fails at once and is not tried again and again."""
    right = CONFIG.read_text()
    CONFIG.write_text("[serve]\nprot = 1\n")
    run("systemctl", "start", "workhorse.service")
    until(lambda: unit("ActiveState")["ActiveState"] == "failed")
    facts = unit("NRestarts", "ExecMainStatus", "Result")
    time.sleep(3)  # RestartSec is 1 here
    still = unit("ActiveState")["ActiveState"]
    CONFIG.write_text(right)
    run("systemctl", "reset-failed", "workhorse.service")
    done = run("systemctl", "start", "workhorse.service")
    good = still == "failed" and facts["NRestarts"] == "0" and done.returncode == 0
    return facts | {"good": good and answers()}


def booted() -> Json:
    """The machine has started anew, and nobody has asked for anything."""
    took_s = until(lambda: unit("ActiveState")["ActiveState"] == "active")
    return {"good": answers(), "ready after further s": took_s}


def removed() -> Json:
    """`service remove` stops it and leaves no unit."""
    done = workhorse("service", "remove")
    left = Path("/etc/systemd/system/workhorse.service").exists()
    good = done.returncode == 0 and not left and not engines()
    return {
        "good": good and unit("LoadState")["LoadState"] in ("not-found", "masked", "bad-setting")
    }


def main() -> None:
    """Each part, whatever came of the others."""
    first = (installed, reloaded, watched, killed, stopped, refused)
    for part in first if BOOT == "1" else (booted, removed):
        try:
            seen[part.__name__] = part()
        except Exception as error:  # noqa: BLE001  (the other parts are wanted as well)
            seen[part.__name__] = {"good": False, "error": repr(error)}
        print(part.__name__, seen[part.__name__], flush=True)
        (OUT / f"result-{BOOT}.json").write_text(json.dumps(seen))
    said = run("journalctl", "-u", "workhorse", "--no-pager", "-n", "60").stdout
    (OUT / f"journal-{BOOT}.txt").write_text(said)


if __name__ == "__main__":
    main()
