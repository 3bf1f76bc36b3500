"""Which projector a model is started with: the one that is asked for, or the one beside it."""

from dataclasses import dataclass, replace
from pathlib import Path

from workhorse.errors import EXIT_USAGE, AppError
from workhorse.models.projector import (
    chosen_projector,
    fits,
    projectors_beside,
    read_projector,
)
from workhorse.models.read import local_folder
from workhorse.plan.images import takes_projector
from workhorse.records import EngineBuild, Model, Plan, Projector, Rejected
from workhorse.text import Text

NONE = "none"  # what `--mmproj` says to a model that is to take text alone


@dataclass(frozen=True, slots=True)
class Seen:
    """The model with its projector, and what was not taken."""

    model: Model
    rejected: tuple[Rejected, ...] = ()

    def noted(self, plan: Plan) -> Plan:
        """The plan with a word about what was not taken."""
        return replace(plan, rejected=(*plan.rejected, *self.rejected))


def with_projector(model: Model, build: EngineBuild, asked: str | None) -> Seen:
    """The model as this build is to load it. AppError when what was asked for cannot be done.

    Left out, the only projector in the model's folder is taken.
    """
    if asked == NONE:
        return Seen(model)
    if asked is not None:
        if build.engine != "llama.cpp" or not takes_projector(build):
            raise takes_none(build)
        found = read_projector(Path(asked).absolute())
        if not fits(found, model):
            raise made_for_another(found, model)
        return Seen(replace(model, projector=found))
    if model.format != "gguf" or model.pooling or build.engine != "llama.cpp":
        return Seen(model)
    if local_folder(model.path) is None:
        return Seen(model)
    beside = projectors_beside(Path(model.path).absolute())
    if not beside:
        return Seen(model)
    if not takes_projector(build):
        return Seen(model, (not_taken_by(build, beside[0]),))
    one = chosen_projector(beside)
    if one is None:
        return Seen(model, (several(beside),))
    try:
        found = read_projector(one)
    except AppError as error:  # nobody asked for it: the model serves text without it
        return Seen(model, (Rejected(one.name, error.what),))
    if not fits(found, model):
        return Seen(model, (Rejected(one.name, made_for_another(found, model).what),))
    return Seen(replace(model, projector=found))


def takes_none(build: EngineBuild) -> AppError:
    """The error for a build that cannot be given a projector."""
    return AppError(
        Text(
            f"{build.version} takes no projector file.",
            f"{build.version} 不支持投影器文件。",
        ),
        Text(
            "Leave out --mmproj, or choose a newer llama.cpp with --engine.",
            "请去掉 --mmproj，或用 --engine 选择较新的 llama.cpp。",
        ),
        exit_code=EXIT_USAGE,
    )


def made_for_another(projector: Projector, model: Model) -> AppError:
    """The error for a projector whose output has another width than the model's states."""
    name, size = Path(projector.path).name, model.embedding_size
    return AppError(
        Text(
            f"The projector {name} was made for another model than {model.name}: none of its "
            f"outputs is {size} wide.",
            f"投影器 {name} 属于别的模型，不适用于 {model.name}：其输出宽度都不是 {size}。",
        ),
        Text(
            "Name the model's own with --mmproj FILE, or --mmproj none.",
            "请用 --mmproj 指定该模型自己的投影器，或用 --mmproj none。",
        ),
        exit_code=EXIT_USAGE,
    )


def not_taken_by(build: EngineBuild, path: Path) -> Rejected:
    """A projector lies there, and the build cannot load it."""
    return Rejected(
        path.name,
        Text(
            f"{build.version} knows no --mmproj: images cannot be sent.",
            f"{build.version} 没有 --mmproj 选项，无法发送图像。",
        ),
    )


def several(paths: list[Path]) -> Rejected:
    """Several lie there, and which one belongs to the model cannot be told."""
    names = [path.name for path in paths[:8]]
    return Rejected(
        "--mmproj",
        Text(
            f"Several projectors lie beside the model ({', '.join(names)}): name one with "
            "--mmproj FILE to send images.",
            f"模型旁有多个投影器（{'、'.join(names)}）：如需发送图像，请用 --mmproj 指定其一。",
        ),
    )
