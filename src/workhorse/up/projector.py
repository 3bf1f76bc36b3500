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
from workhorse.records import EngineBuild, Finding, Model, Plan, Projector, Verdict
from workhorse.text import Text

NONE = "none"  # what `--mmproj` says to a model that is to take text alone
LISTED_MAX = 8


@dataclass(frozen=True, slots=True)
class Seen:
    """The model with its projector, or why one that lies there is not used."""

    model: Model
    unused: Text | None = None

    def noted(self, plan: Plan) -> Plan:
        """The plan with a note about what is not used."""
        if self.unused is None:
            return plan
        return replace(plan, verdict=Verdict((*plan.verdict.findings, not_used(self.unused))))


def with_projector(model: Model, build: EngineBuild, asked: str | None) -> Seen:
    """The model as this build is to load it. AppError when what was asked for cannot be done.

    Left out, the only projector in the model's folder is taken; one that does not do never stops
    a model that nobody wants to send images to.
    """
    if asked == NONE:
        return Seen(model)
    if asked is not None:
        if build.engine != "llama.cpp" or not takes_projector(build):
            raise takes_none(build)
        return Seen(replace(model, projector=read_for(model, Path(asked).absolute())))
    if model.format != "gguf" or model.pooling or build.engine != "llama.cpp":
        return Seen(model)
    if local_folder(model.path) is None:
        return Seen(model)
    beside = projectors_beside(Path(model.path).absolute())
    if not beside:
        return Seen(model)
    if not takes_projector(build):
        return Seen(model, takes_none(build).what)
    one = chosen_projector(beside)
    if one is None:
        return Seen(model, several(beside))
    try:
        return Seen(replace(model, projector=read_for(model, one)))
    except AppError as error:
        return Seen(model, error.what)


def read_for(model: Model, path: Path) -> Projector:
    """The projector in a file; AppError for another file, or one of another model."""
    found = read_projector(path)
    if not fits(found, model):
        raise made_for_another(found, model)
    return found


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


def several(paths: list[Path]) -> Text:
    """What is said when which one belongs to the model cannot be told."""
    names = [path.name for path in paths[:LISTED_MAX]]
    return Text(
        f"Several projectors lie beside the model: {', '.join(names)}.",
        f"模型旁有多个投影器：{'、'.join(names)}。",
    )


def not_used(why: Text) -> Finding:
    """The note that images cannot be sent though there is a projector."""
    return Finding(
        code="model.projector_unused",
        level="note",
        seen=why,
        why=Text("No projector is used: images cannot be sent.", "未使用投影器，无法发送图像。"),
        remedy=Text(
            "To send images name the model's own with --mmproj FILE; --mmproj none says that "
            "text is enough.",
            "如需发送图像，请用 --mmproj 指定该模型的投影器；只用文本则用 --mmproj none。",
        ),
        source="the files in the model's folder",
    )
