"""The service manager: is it here, and what it is told."""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from workhorse.errors import EXIT_NO, AppError
from workhorse.text import Text

RUNS = Path("/run/systemd/system")  # sd_booted(3)
SYSTEM_UNITS = Path("/etc/systemd/system")
ANSWER_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Manager:
    """The machine's service manager, or the user's own."""

    units: Path
    user: bool

    def commands(self, name: str, action: str) -> list[list[str]]:
        """What makes a unit run (`install`), or ends it (`remove`)."""
        systemctl = ["systemctl", *(["--user"] if self.user else [])]
        if action == "install":
            return [
                [*systemctl, "daemon-reload"],
                [*systemctl, "enable", "--now", f"{name}.service"],
            ]
        return [[*systemctl, "disable", "--now", f"{name}.service"]]

    def path(self, name: str) -> Path:
        """Where the unit of this name lies."""
        return self.units / f"{name}.service"

    def install(self, name: str, unit: str) -> None:
        """Write the unit and start it; an AppError tells what did not go well."""
        check_unit(name, unit, user=self.user)
        refuse_without_systemd(self.user)
        path = self.path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(unit)
        except OSError as error:
            raise AppError(
                Text(f"{path} cannot be written: {error}.", f"无法写入 {path}：{error}。"),
                Text(
                    "Ask as root (sudo), or install it for this user alone: --user.",
                    "请用 root（sudo）运行，或用 --user 只为当前用户安装。",
                ),
            ) from error
        for command in self.commands(name, "install"):
            tell_manager(command)

    def remove(self, name: str) -> None:
        """Stop the unit and delete it."""
        path = self.path(name)
        if not path.is_file():
            raise AppError(
                Text(f"There is no unit {path}.", f"没有单元文件 {path}。"),
                Text(
                    "`workhorse service show` lists what there is.",
                    "用 `workhorse service show` 查看。",
                ),
            )
        for command in self.commands(name, "remove"):
            tell_manager(command)
        path.unlink()
        tell_manager(self.commands(name, "install")[0])


def check_unit(name: str, unit: str, *, user: bool) -> None:
    """Have systemd itself read the unit before it is installed, where its checker is here."""
    program = shutil.which("systemd-analyze")
    if program is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.service"
        path.write_text(unit)
        # Without the manual pages that no machine has, and without the units it only names.
        words = [program, "verify", "--man=no", "--recursive-errors=no", str(path)]
        done = run([*words[:2], "--user", *words[2:]] if user else words)
    # What it says of other units and of the machine says nothing of this one.
    said = "\n".join(line for line in done.stderr.splitlines() if path.name in line)
    if done.returncode != 0 and said:
        raise AppError(
            Text(f"systemd refuses the unit: {said}", f"systemd 拒绝该单元：{said}"),
            Text("Please report it with the unit.", "请连同单元文件一起反馈。"),
        )


def refuse_without_systemd(user: bool) -> None:
    """An AppError where systemd does not run: a container, another init system."""
    if not RUNS.is_dir() or shutil.which("systemctl") is None:
        unit_en = "unit of this user" if user else "unit"
        raise AppError(
            Text(
                f"systemd does not run here, so no {unit_en} can be started.",
                "本机未运行 systemd，无法启动单元。",
            ),
            Text(
                "--dry-run prints the unit; `workhorse up` serves without one.",
                "--dry-run 会打印单元内容；也可直接用 `workhorse up` 提供服务。",
            ),
            exit_code=EXIT_NO,
        )


def tell_manager(command: list[str]) -> str:
    """Run one command of the manager; its words when it is not content are an AppError."""
    done = run(command)
    if done.returncode != 0:
        shown = " ".join(command)
        said = (done.stderr or done.stdout).strip()
        raise AppError(
            Text(f"`{shown}` failed: {said}", f"`{shown}` 失败：{said}"),
            Text(
                "`journalctl -u workhorse -n 50` has the service's own words.",
                "用 `journalctl -u workhorse -n 50` 查看服务日志。",
            ),
        )
    return done.stdout


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program that may be missing or slow."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=ANSWER_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
