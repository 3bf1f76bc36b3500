"""Compares what a card computes with what the CPU computes, by llama.cpp's own test program.

A part of its cases: those of the kernels that every model runs, some minutes where the driver has
to compile PTX first, seconds where there is machine code for the card.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from workhorse.engines.supply.manifest import Manifest
from workhorse.engines.supply.recipe import OPS_TEST
from workhorse.errors import AppError
from workhorse.models.part_file import local_errors
from workhorse.records import Finding
from workhorse.text import Text

# The first use of a kernel from PTX takes up to minutes for a file of them (H200, 2026-11).
TIMEOUT_S = 1200.0
_PASSED = re.compile(r"(?m)^\s*(\d{1,6})/(\d{1,6}) tests passed")
_FAILED = re.compile(r"(?m)^\s*(\w+)\(([^\n]{1,300})\): .*FAIL")


@dataclass(frozen=True, slots=True)
class Cases:
    """Some cases of the test program."""

    operations: str  # as its -o
    parameters: str  # a regular expression, as its -p


# The words are those of test-backend-ops, commit 0c1e57098.
PLAIN = Cases(
    "MUL_MAT,GET_ROWS,RMS_NORM,ROPE,SOFT_MAX,SWIGLU",
    r"^type_a=(f16|q8_0|q4_K|q6_K|q4_0),type_b=f32,m=16,n=(1|8|16),k=256,bs=\[1,1\]"
    r"|^type=f32,ne=\[64,5,4,3\]|^type=(f16|q4_0|q4_K),n=256,m=5,r=4|^type=f32,ne_a=\[128,32,2,1\]"
    r"|^type=f32,ne=\[16,16,1,1\],mask=1|^type=f32,ne_a=\[128,2,2,2\],v=0,swapped=0",
)
ATTENTION = Cases(
    "FLASH_ATTN_EXT",
    r"^hsk=(64|128),hsv=(64|128),nh=4,nr23=\[(1|4),1\],kv=512,nb=(1|3|32|75),mask=1,sinks=0,"
    r"max_bias=0\.0+,logit_softcap=0\.0+,prec=f32,type_K=(f16|q8_0),type_V=(f16|q8_0),"
    r"permute=\[0,1,2,3\]",
)


@dataclass(frozen=True, slots=True)
class Compared:
    """How many cases came out as on the CPU, and which did not."""

    right: int
    all: int
    wrong: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether there were cases and all were right."""
        return self.all > 0 and self.right == self.all


def compare(
    folder: Path, cases: Cases, log_path: Path, timeout_s: float = TIMEOUT_S
) -> Compared | None:
    """Run the cases on the first card; None when the program ended without a result.

    What it said is in `log_path`.
    """
    program = str(folder / "bin" / OPS_TEST)
    command = [program, "test", "-b", "CUDA0", "-o", cases.operations, "-p", cases.parameters]
    with local_errors(log_path):
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            try:
                subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=timeout_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return None
            except OSError as error:
                raise AppError(
                    Text(f"{program} does not run: {error}.", f"{program} 无法运行：{error}。"),
                    Text("Make the build again.", "请重新构建。"),
                ) from error
        return read_result(log_path.read_text("utf-8", "replace"))


def read_result(said: str) -> Compared | None:
    """What the program's words come to; None when it did not get to its end."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", said)
    found = _PASSED.findall(plain)
    if not found:
        return None
    wrong = tuple(f"{name}({words})" for name, words in _FAILED.findall(plain))
    return Compared(sum(int(a) for a, _ in found), sum(int(b) for _, b in found), wrong[:100])


def has_test(manifest: Manifest) -> bool:
    """Whether the build has the program."""
    return any(file.path == f"bin/{OPS_TEST}" for file in manifest.files)


def card_finding(manifest: Manifest, compared: Compared | None, what: Text) -> Finding:
    """What the comparison says of the build; pure."""
    if compared is not None and compared.good:
        return Finding(
            code="engine.card-right",
            level="good",
            seen=Text(
                f"{what.en} of {manifest.name}: all {compared.all} cases on the card as on the "
                "CPU.",
                f"{manifest.name} 的{what.zh}：{compared.all} 个用例在显卡与 CPU 上结果一致。",
            ),
            why=Text("The code made for the card is right.", "为显卡生成的代码正确。"),
            remedy=Text("Nothing to do.", "无需操作。"),
            source=f"{OPS_TEST}, a part of its cases",
        )
    seen = (
        Text(
            f"{what.en} of {manifest.name}: no result from the card.",
            f"{manifest.name} 的{what.zh}：显卡没有给出结果。",
        )
        if compared is None or not compared.all
        else Text(
            f"{what.en} of {manifest.name}: {compared.all - compared.right} of {compared.all} "
            "cases on the card differ from the CPU.",
            f"{manifest.name} 的{what.zh}：{compared.all} 个用例中有 "
            f"{compared.all - compared.right} 个在显卡上与 CPU 不一致。",
        )
    )
    return Finding(
        code="engine.card-wrong",
        level="warning",
        seen=seen,
        why=Text("Answers from the card may be garbage.", "显卡给出的回答可能是乱码。"),
        remedy=Text(
            "Use the CPU, or another build, and tell us the log.",
            "请改用 CPU 或其他构建，并反馈日志。",
        ),
        source=f"{OPS_TEST}, a part of its cases",
        evidence=compared.wrong[:8] if compared else (),
    )


def card_not_seen(manifest: Manifest) -> Finding:
    """A card is here and code for it, and still llama-server lists none; pure."""
    return Finding(
        code="engine.card-not-seen",
        level="warning",
        seen=Text(
            f"{manifest.name} has code for the card that is here, but lists no card.",
            f"{manifest.name} 含有本机显卡的代码，但没有列出任何显卡。",
        ),
        why=Text(
            "Its CUDA part could not be loaded: the driver is older than 525, or cuBLAS 12 is "
            "missing. Models would run on the CPU.",
            "其 CUDA 部分无法加载：驱动早于 525，或缺少 cuBLAS 12。模型将在 CPU 上运行。",
        ),
        remedy=Text(
            "Update the driver; make the build again without --no-cublas.",
            "请更新驱动；不加 --no-cublas 重新构建。",
        ),
        source="llama-server --list-devices",
        command="workhorse doctor",
    )
