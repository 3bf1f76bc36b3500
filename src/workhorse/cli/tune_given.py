"""What `workhorse tune` starts from: the plan, other builds and files, what was learned here."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from workhorse.cli.parser import not_taken
from workhorse.config import Places
from workhorse.errors import EXIT_NO, EXIT_USAGE, AppError
from workhorse.text import Text

if TYPE_CHECKING:
    from workhorse.tune.given import Given
    from workhorse.up.decide import Ask, Decision


def paths(word: str) -> tuple[Path, ...]:
    """Files from `a.gguf,b.gguf`, as argparse wants it."""
    found = tuple(Path(part.strip()) for part in word.split(",") if part.strip())
    if not found:
        raise not_taken(Text(f"{word!r} names no file", f"{word!r} 中没有文件"))
    return found


def given_of(decision: "Decision", ask: "Ask", where: Places, args: argparse.Namespace) -> "Given":
    """What the tuning is given; AppError for a model that it is not for."""
    from workhorse.models.quantize.quality_store import FILE, QualityStore
    from workhorse.models.read import needs_local_file
    from workhorse.tune.files import known_divergences, other_files
    from workhorse.tune.fingerprint import build_key
    from workhorse.tune.given import Given
    from workhorse.tune.kept import goal_of
    from workhorse.tune.trial import Constraints
    from workhorse.up.decide import at_hand, checkpoint_of, learned_here

    plan, model = decision.plan, decision.model
    if plan.embeddings:
        raise embeds(plan.model_name)
    if args.files and plan.pool is not None:
        raise no_files(plan.engine.version)
    if model.format != "gguf" and plan.pool is None:
        raise needs_local_file(ask.model or "")
    if args.files and args.quality is None:
        raise no_limit()
    files = other_files(args.files, model) if args.files else ()
    own = build_key(plan.engine)
    history, _, _ = learned_here(where)
    return Given(
        decision.machine,
        model,
        plan,
        goal_of(ask.wish),
        Constraints(plan.context_tokens, plan.slots, ask.wish.headroom, args.quality),
        tuple(one for one in at_hand(ask, where, decision) if build_key(one) != own),
        files,
        history,
        known_divergences(files, model, QualityStore(where.data / FILE)) if files else (),
        checkpoint_of(ask) if plan.pool is not None else None,
    )


def embeds(name: str) -> AppError:
    """Models for embeddings or ranking generate nothing that could be tuned."""
    return AppError(
        Text(
            f"{name} makes embeddings or scores: there is no decoding to tune.",
            f"{name} 是嵌入或重排序模型，没有可调优的解码过程。",
        ),
        Text("Tune a model that writes text.", "请对生成文本的模型调优。"),
        exit_code=EXIT_NO,
    )


def no_files(version: str) -> AppError:
    """An engine that takes a checkpoint was given GGUF files to try."""
    return AppError(
        Text(
            f"{version} takes the checkpoint as it is: there are no other quants to try.",
            f"{version} 直接使用原始模型，没有其他量化文件可试。",
        ),
        Text(
            "Leave out --files, or tune a GGUF file with --engine llama.cpp.",
            "请去掉 --files，或用 --engine llama.cpp 调优 GGUF 文件。",
        ),
        exit_code=EXIT_USAGE,
    )


def no_limit() -> AppError:
    """Other quants were named, and not how much may be lost with them."""
    return AppError(
        Text(
            "Other quants lose quality, and nothing says how much they may.",
            "其他量化会损失质量，但未说明允许损失多少。",
        ),
        Text(
            "Add the most that is allowed as KL divergence, such as --quality 0.02.",
            "请用 --quality 给出允许的 KL 散度上限，如 --quality 0.02。",
        ),
        exit_code=EXIT_USAGE,
    )
