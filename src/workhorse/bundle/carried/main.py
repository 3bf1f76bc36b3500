"""The two programs of a bundle: `python3 verify.py` and `python3 install.py`."""

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from .check import compare_folder, refuse_difference
from .install import default_prefix, install
from .manifest import read_manifest
from .words import Line, Refusal, Words

OWN_FOLDER = Path(__file__).resolve().parent.parent


def run_verify(arguments: list[str]) -> int:
    """Compare the bundle around this file with its manifest."""
    about = Words(
        "Compare every file of this bundle with its manifest.", "核对离线包中的每个文件。"
    )
    argparse.ArgumentParser(prog="verify.py", description=about.told()).parse_args(arguments)
    line = Line()

    def work() -> None:
        manifest = read_manifest(OWN_FOLDER)
        refuse_difference(compare_folder(OWN_FOLDER, manifest, line.progress))
        line.clear()
        count = len(manifest.files)
        print(Words(f"All {count} files are right.", f"全部 {count} 个文件均正确。").told())

    return _told(work, line)


def run_install(arguments: list[str]) -> int:
    """Install the bundle around this file."""
    about = Words(
        "Install workhorse, its engines and models from this bundle; nothing is fetched.",
        "从离线包安装 workhorse、引擎与模型，不访问网络。",
    )
    parser = argparse.ArgumentParser(prog="install.py", description=about.told())
    prefix = Words(
        "the folder for all of it, which becomes WORKHORSE_HOME (default: {})",
        "全部内容的目录，即 WORKHORSE_HOME（默认：{}）",
    )
    default = default_prefix()
    words = prefix.told().format(default).replace("%", "%%")
    parser.add_argument("--prefix", type=Path, default=default, help=words)
    asked = parser.parse_args(arguments)
    line = Line()

    def work() -> None:
        done = install(OWN_FOLDER, asked.prefix, line)
        line.clear()
        print(Words(f"Installed: {done.command}", f"已安装：{done.command}").told())
        print(Words("Serve a model:", "启动服务：").told())
        for model in done.models:
            print(f"  {done.command} up {model}")

    return _told(work, line)


def _told(work: Callable[[], None], line: Line) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        work()
    except Refusal as refusal:
        line.clear()
        words = f"workhorse: {refusal.what.told()}\n  → {refusal.next_step.told()}"
        print(words, file=sys.stderr)
        return refusal.exit_code
    except KeyboardInterrupt:
        line.clear()
        print(Words("broken off", "已中断").told(), file=sys.stderr)
        return 1
    return 0
