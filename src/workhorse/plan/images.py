"""What a plan says of images: the projector, and which builds load one. Pure."""

from pathlib import PurePath

from workhorse.records import EngineBuild, Model, Projector, Reason
from workhorse.text import Text


def takes_projector(build: EngineBuild) -> bool:
    """Whether this build can be given a projector."""
    return "--mmproj" in build.knows


def projector_reason(model: Model) -> tuple[Reason, ...]:
    """What the projector is there for; nothing for a model without one."""
    found = model.projector
    if found is None:
        return ()
    return (Reason("projector", PurePath(found.path).name, said_of(found)),)


def said_of(projector: Projector) -> Text:
    """What can be sent to a model with this projector."""
    if projector.images and projector.sound:
        return Text(
            "Images and sound can be sent to the model; --mmproj none saves the memory.",
            "可向模型发送图像和声音；--mmproj none 可节省这部分内存。",
        )
    if projector.images:
        return Text(
            "Images can be sent to the model; --mmproj none saves the memory.",
            "可向模型发送图像；--mmproj none 可节省这部分内存。",
        )
    return Text(
        "Sound can be sent to the model; --mmproj none saves the memory.",
        "可向模型发送声音；--mmproj none 可节省这部分内存。",
    )
