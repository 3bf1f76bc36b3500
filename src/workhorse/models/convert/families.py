"""What to tell about a conversion: models known to overflow, odd values, weights left behind."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from workhorse.doctor.rule_words import sureness, symptom_after
from workhorse.knowledge.checkpoints import checkpoint_kinds
from workhorse.knowledge.fp16_overflow import Fp16Overflow, overflows_of
from workhorse.models.config_json import CONFIG_BYTES_MAX
from workhorse.models.convert.report import TensorRange
from workhorse.models.refusals import shown
from workhorse.records import Finding
from workhorse.text import Text

NAMES_SHOWN = 5


class _Config(msgspec.Struct):
    architectures: list[str] | None = None


def known_to_overflow(folder: Path) -> list[Finding]:
    """The reports about models of this architecture and name; [] when the config names none."""
    try:
        with (folder / "config.json").open("rb") as file:
            config = msgspec.json.decode(file.read(CONFIG_BYTES_MAX), type=_Config)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []  # whoever carries it along says what is wrong with it
    kinds = [checkpoint_kinds().get(name) for name in (config.architectures or ())[:1]]
    name = folder.resolve().name
    return [
        _finding(report, name, kind.gguf)
        for kind in kinds
        if kind is not None
        for report in overflows_of(kind.gguf, name)
    ]


def _finding(report: Fp16Overflow, name: str, architecture: str) -> Finding:
    where = (
        Text("every engine", "所有引擎")
        if report.engine == "any"
        else Text(report.engine, report.engine)
    )
    name = shown(name)
    return Finding(
        code=f"fp16.{report.id}",
        level="note" if report.handled else "warning",
        seen=Text(
            f"{name} ({architecture}) in {where.en}, on cards of compute capability "
            f"{report.capability}: known to overflow in FP16 when it computes, however good the "
            "weights are.",
            f"{name}（{architecture}）在 {where.zh}、计算能力 {report.capability} 的卡上：已知 FP16"
            " 计算时会溢出，与权重转换是否正确无关。",
        ),
        why=symptom_after(report.cause, report.symptom),
        remedy=report.remedy,
        source=report.source,
        sure=sureness(report.confidence),
    )


def findings_of(ranges: Sequence[TensorRange], left_out: Sequence[str]) -> Iterator[Finding]:
    """What the ranges of the tensors say that a reader must not miss."""
    odd = [found for found in ranges if found.nan or found.infinite]
    if odd:
        yield _not_finite(odd)
    kept = [found for found in ranges if found.stored_as == "F32"]
    if kept:
        yield _kept(kept)
    clamped = [found for found in ranges if found.overflowed and found.stored_as == "F16"]
    if clamped:
        yield _clamped(clamped)
    if left_out:
        yield _left_out(left_out)


def _names(found: Sequence[TensorRange]) -> str:
    return _listed([tensor.name for tensor in found])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:NAMES_SHOWN])) + (" …" if len(names) > NAMES_SHOWN else "")


def _not_finite(odd: Sequence[TensorRange]) -> Finding:
    nan, infinite = sum(t.nan for t in odd), sum(t.infinite for t in odd)
    return Finding(
        code="convert.not-finite",
        level="warning",
        seen=Text(
            f"{nan} NaN and {infinite} infinite weights were in the checkpoint already: "
            f"{_names(odd)}.",
            f"原模型中已有 {nan} 个 NaN 和 {infinite} 个无穷大权重：{_names(odd)}。",
        ),
        why=Text(
            "Each spoils every answer that passes through it; a damaged download looks like this.",
            "凡经过它们的计算结果都会失效；下载损坏时常见此现象。",
        ),
        remedy=Text(
            "Compare the files' checksums with the publisher's.",
            "请将文件校验值与发布者公布的核对。",
        ),
        source="IEEE 754",
    )


def _kept(kept: Sequence[TensorRange]) -> Finding:
    return Finding(
        code="convert.kept-f32",
        level="warning",
        seen=Text(
            f"{len(kept)} tensors stay in F32, because FP16 cannot hold them: {_names(kept)}.",
            f"{len(kept)} 个张量超出 FP16 范围，以 F32 保存：{_names(kept)}。",
        ),
        why=Text(
            "An engine that casts all weights to FP16 as it loads them makes them infinite after "
            "all.",
            "若引擎加载时把全部权重转为 FP16，这些值仍会变成无穷大。",
        ),
        remedy=Text(
            "Run it in an engine that keeps each tensor's type.", "请使用保留各张量类型的引擎。"
        ),
        source="safetensors",
    )


def _clamped(clamped: Sequence[TensorRange]) -> Finding:
    values = sum(tensor.overflowed for tensor in clamped)
    return Finding(
        code="convert.clamped",
        level="warning",
        seen=Text(
            f"{values} values in {len(clamped)} tensors became ±65504: {_names(clamped)}.",
            f"{len(clamped)} 个张量中有 {values} 个值被截断为 ±65504：{_names(clamped)}。",
        ),
        why=Text("The model is no longer the same there.", "这些位置与原模型不再一致。"),
        remedy=Text(
            "Compare its answers with the original's before you rely on it.",
            "正式使用前请与原模型的回答对比。",
        ),
        source="IEEE 754",
    )


def _left_out(left_out: Sequence[str]) -> Finding:
    return Finding(
        code="convert.left-out",
        level="note",
        seen=Text(
            f"{len(left_out)} files with other weights were left behind: {_listed(left_out)}.",
            f"{len(left_out)} 个其他权重文件未处理：{_listed(left_out)}。",
        ),
        why=Text(
            "They are not of this checkpoint, or of another format.",
            "它们不属于本次转换的检查点，或是其他格式。",
        ),
        remedy=Text("Copy them yourself if you need them.", "如有需要请自行复制。"),
        source="workhorse convert",
    )
