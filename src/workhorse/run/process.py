"""One engine process and its one owner: start, readiness, end, log."""

import asyncio
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp

from workhorse.errors import AppError, Cause
from workhorse.records import Launch
from workhorse.run import enter
from workhorse.run.address import Address
from workhorse.run.policy import describe_exit, last_error, says_port_taken
from workhorse.text import Text, same
from workhorse.units import show_duration

Explain = Callable[[Sequence[str]], Cause | None]

PROBE_S = 2.0  # longest wait for one answer of the health endpoint
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.25  # between two looks at it
# llama-server ends at once on a first SIGTERM unless a request is in flight, then it needs a
# second one (tried with 0.5.0, 2026-11).
SECOND_TERM_S = 2.0
AFTER_KILL_S = 30.0  # a driver call that cannot be interrupted may hold a killed process so long

KEY_BYTES = 32

TAIL_BYTES = 256 * 1024
LINES_OF_CAUSE = 400
LOG_LIMIT_BYTES = 64 * 1024 * 1024


class PortTaken(AppError):
    """The engine could not have its port; another one may be free."""


def free_port(host: str) -> int:
    """A port on which nobody listens now.

    Another process may take it before the engine does: see `PortTaken`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


class EngineProcess:
    """The owner of one engine process, from its start to its end.

    The engine has its own session and process group, so a Ctrl-C in the terminal does not reach
    it before it is stopped in order; the whole group ends with it. If this process dies without
    a word, the kernel kills the engine (`enter`). Every user of the machine can reach its port, so
    each start has a key of its own, handed over in the environment, which only its owner can read.
    `explain` finds the cause of a failure in the lines of its log, which holds all it writes and
    is kept once more as `.1`.
    """

    def __init__(self, launch: Launch, log_path: Path, *, explain: Explain = last_error) -> None:
        self.launch = launch
        self.log_path = log_path
        self.exited = asyncio.Event()
        host = f"[{launch.host}]" if ":" in launch.host else launch.host
        key = None if launch.key_variable is None else secrets.token_hex(KEY_BYTES)
        self.address = Address(f"http://{host}:{launch.port}", key)
        self._explain = explain
        self._popen: subprocess.Popen[bytes] | None = None
        self._last_answer = same("—")

    @property
    def base_url(self) -> str:
        """Where the engine answers, without a slash at the end."""
        return self.address.url

    @property
    def pid(self) -> int | None:
        """The engine's process id, also that of its group; None before the start."""
        return self._popen.pid if self._popen else None

    @property
    def returncode(self) -> int | None:
        """What it ended with, negative for a signal; None: it has not ended."""
        return self._popen.returncode if self._popen else None

    async def start(self) -> None:
        """Start the process; `wait_ready` says whether that went well.

        Call it from a thread that lives as long as the engine shall: the kernel's death signal
        follows the thread that started it, not the process.
        """
        if self._popen is not None:
            raise RuntimeError("an EngineProcess starts once")
        self._popen = popen = self._spawn()
        loop = asyncio.get_running_loop()

        def watch() -> None:
            # Leaves the ended process unreaped, so its id stays ours until its group is gone.
            os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)
            with suppress(RuntimeError):  # the loop has ended, and with it the interest
                loop.call_soon_threadsafe(self._on_exit, popen)

        threading.Thread(target=watch, name=f"engine-{popen.pid}", daemon=True).start()

    def _spawn(self) -> subprocess.Popen[bytes]:
        entry = [sys.executable, "-I", "-S", enter.__file__, "--parent", str(os.getpid())]
        if self.launch.cpus:
            entry += ["--cpus", ",".join(map(str, self.launch.cpus))]
        if self.launch.memory_nodes:
            entry += ["--memory-nodes", ",".join(map(str, self.launch.memory_nodes))]
        try:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            if self.log_path.exists():
                self.log_path.replace(self._old_log_path)
            # Appending is what makes it safe to cut the file while the engine writes.
            with self.log_path.open("ab") as log:
                return subprocess.Popen(
                    [*entry, "--", *self.launch.argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self.launch.env, **self._key()},
                    start_new_session=True,
                )
        except OSError as error:
            raise AppError(
                Text(f"The engine cannot be started: {error}.", f"无法启动推理引擎：{error}。"),
                Text(
                    f"Make sure that {self.log_path.parent} can be written to.",
                    f"请确认 {self.log_path.parent} 可写。",
                ),
            ) from error

    def _key(self) -> dict[str, str]:
        name, key = self.launch.key_variable, self.address.key
        return {} if name is None or key is None else {name: key}

    def _on_exit(self, popen: subprocess.Popen[bytes]) -> None:
        # What the engine itself started must not live on with its memory and its port.
        self._signal_group(signal.SIGKILL)
        popen.wait()
        self.exited.set()

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when the health endpoint says 200.

        Raises AppError, speaker engine, as soon as the process has ended (`PortTaken` when that
        was the cause) or, after stopping it, when `timeout_s` have passed.
        """
        poll = asyncio.create_task(self._poll_health())
        end = asyncio.create_task(self.exited.wait())
        try:
            await asyncio.wait({poll, end}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if self.exited.is_set():
                raise self.failure()
            if poll.done():
                return poll.result()
            too_slow = self._too_slow(timeout_s)  # before the end adds its own last answer
            await self.stop()
            raise too_slow
        finally:
            poll.cancel()
            end.cancel()
            await asyncio.gather(poll, end, return_exceptions=True)

    async def _poll_health(self) -> None:
        url = self.base_url + self.launch.health_path
        pause_s = FIRST_PAUSE_S
        timeout = aiohttp.ClientTimeout(total=PROBE_S)
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
            while not await self._is_healthy(http, url):
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)

    async def _is_healthy(self, http: aiohttp.ClientSession, url: str) -> bool:
        try:
            async with http.get(url, allow_redirects=False) as answer:
                self._last_answer = same(f"HTTP {answer.status}")
                return answer.status == 200
        except TimeoutError:
            self._last_answer = Text("no answer", "没有回应")
        except aiohttp.ClientConnectorError:
            self._last_answer = Text("connection refused", "连接被拒绝")
        except aiohttp.ClientError as error:
            self._last_answer = same(str(error) or type(error).__name__)
        return False

    async def says(self, path: str, wait_s: float) -> object:
        """The JSON document that the engine answers to a GET; None when nothing comes in time.

        An answer that is no JSON is an empty object.
        """
        timeout = aiohttp.ClientTimeout(total=wait_s)
        connector = aiohttp.TCPConnector(force_close=True)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, connector=connector) as http,
                http.get(
                    self.base_url + path, headers=self.address.headers, allow_redirects=False
                ) as answer,
            ):
                found: object = await answer.json(content_type=None)
                return {} if found is None else found
        except ValueError:
            return {}
        except (aiohttp.ClientError, OSError):  # a TimeoutError is an OSError
            return None

    def failure(self) -> AppError:
        """What to tell about a process that ended by itself."""
        if says_port_taken(self.log_tail(50)):
            port = self.launch.port
            return PortTaken(
                Text(
                    f"The engine ended because another program has port {port}.",
                    f"端口 {port} 被其他程序占用，推理引擎已退出。",
                ),
                Text(
                    f"`ss -ltnp sport = :{port}` shows it.", f"用 `ss -ltnp sport = :{port}` 查看。"
                ),
                speaker="engine",
            )
        why = self.why_ended()
        return AppError(
            Text(f"The engine ended: {why.en}", f"推理引擎已退出：{why.zh}"),
            self._next_step() or self._read_log(),
            speaker="engine",
        )

    def _next_step(self) -> Text | None:
        cause = self._explain(self.log_tail(LINES_OF_CAUSE))
        return None if cause is None else cause.next_step

    def why_ended(self) -> Text:
        """The cause from the log and the way it ended, as one sentence without a subject."""
        how = Text("still running", "仍在运行")
        if self.returncode is not None:
            how = describe_exit(self.returncode)
        cause = self._explain(self.log_tail(LINES_OF_CAUSE))
        if cause is None:
            return Text(f"{how.en}.", f"{how.zh}。")
        return Text(f"{cause.what.en} ({how.en}).", f"{cause.what.zh}（{how.zh}）。")

    def _too_slow(self, timeout_s: float) -> AppError:
        waited, last = show_duration(timeout_s), self._last_answer
        return AppError(
            Text(
                f"The engine was not ready after {waited} and was stopped; "
                f"its health endpoint said last: {last.en}.",
                f"推理引擎在 {waited} 内未就绪，已被停止；健康检查的最后结果：{last.zh}。",
            ),
            self._read_log(),
            speaker="engine",
        )

    def _read_log(self) -> Text:
        return Text(f"Read its log: {self.log_path}", f"请查看引擎日志：{self.log_path}")

    async def stop(self, grace_s: float | None = None) -> None:
        """End the process and its group: TERM, TERM again, KILL after `grace_s` seconds.

        None: the launch's own grace. Safe to call at any time and more than once. Cancelling it
        kills the engine at once.
        """
        if self._popen is None:
            return
        grace_s = self.launch.stop_grace_s if grace_s is None else grace_s
        first_s = min(SECOND_TERM_S, grace_s / 2)
        try:
            for wait_s in (first_s, grace_s - first_s):
                self._signal_group(signal.SIGTERM)
                if await self.ends_within(wait_s):
                    return
        finally:
            self._signal_group(signal.SIGKILL)
        if not await self.ends_within(AFTER_KILL_S):
            raise AppError(
                Text(
                    f"The engine (process {self.pid}) does not end although it was killed.",
                    f"推理引擎（进程 {self.pid}）已被强制终止，但仍未退出。",
                ),
                Text(
                    "A device driver holds it; look at `dmesg`, a restart of the machine frees it.",
                    "它被设备驱动占住；请查看 `dmesg`，重启机器可以释放。",
                ),
                speaker="engine",
            )

    def kill(self) -> None:
        """Kill the process and its group; `stop` waits for their end."""
        self._signal_group(signal.SIGKILL)

    async def ends_within(self, wait_s: float) -> bool:
        """Whether the process has ended, waiting up to `wait_s` for it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self.exited.wait()
        return self.exited.is_set()

    def _signal_group(self, number: signal.Signals) -> None:
        if self._popen is None or self.exited.is_set():
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, number)

    def log_tail(self, lines: int) -> list[str]:
        """The last lines of the log, without line ends; none when there is no log."""
        try:
            with self.log_path.open("rb") as log:
                size_bytes = log.seek(0, os.SEEK_END)
                log.seek(max(0, size_bytes - TAIL_BYTES))
                return log.read().decode("utf-8", errors="replace").splitlines()[-lines:]
        except FileNotFoundError:
            return []

    def log_ends(self, lines: int) -> list[str]:
        """The first lines of the log and the last, at most so many each.

        An engine tells its settings first, and may say much about its weights after that.
        """
        try:
            with self.log_path.open("rb") as log:
                first = log.read(TAIL_BYTES)
                begin = max(len(first), log.seek(0, os.SEEK_END) - TAIL_BYTES)
                log.seek(begin)
                between = b"" if begin == len(first) else b"\n"
                said = first + between + log.read()
        except FileNotFoundError:
            return []
        every = said.decode("utf-8", errors="replace").splitlines()
        return every if len(every) <= 2 * lines else [*every[:lines], *every[-lines:]]

    def limit_log(self, limit_bytes: int = LOG_LIMIT_BYTES) -> None:
        """Start the log again when it is longer than `limit_bytes`; what it held goes to `.1`."""
        with suppress(OSError):  # a full disk must not end the engine
            if self.log_path.stat().st_size > limit_bytes:
                shutil.copyfile(self.log_path, self._old_log_path)
                os.truncate(self.log_path, 0)

    @property
    def _old_log_path(self) -> Path:
        return self.log_path.with_name(self.log_path.name + ".1")
