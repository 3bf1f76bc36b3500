"""Where the boxes of `fleet plan` come from: the running fleet, a saved status, machine files."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workhorse.cli.show import print_error
from workhorse.codec import from_json
from workhorse.config import places
from workhorse.errors import EXIT_NO, EXIT_USAGE, AppError
from workhorse.fleet.boxes import box_of_option, boxes_of_status
from workhorse.fleet.capacity import Box, Boxes
from workhorse.fleet.kinds import best_option, runnable, why_nothing_runs
from workhorse.fleet.plan_here import PlanRequest, WantedModel, plan_here
from workhorse.fleet.status import FleetStatus
from workhorse.records import Machine
from workhorse.text import Text
from workhorse.units import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workhorse.plan.wish import Wish

FILE_LARGEST_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class Offered:
    """The boxes that are there, and those of which there may be any number."""

    there: tuple[Boxes, ...]
    kinds: tuple[Box, ...]
    told: tuple[Text, ...] = ()  # what is left out, and why


def from_fleet(args: argparse.Namespace) -> Offered:
    """The boxes of the running fleet, or of one that was written down."""
    if args.model:
        raise AppError(
            Text("A model is named, and no machine.", "给出了模型，却没有机器。"),
            Text("Add --machine FILE for each kind of box.", "请为每类机器加上 --machine 文件。"),
            exit_code=EXIT_USAGE,
        )
    if args.status is not None:
        status = from_json(FleetStatus, text_of(args.status), what=str(args.status))
    else:
        from workhorse.cli.fleet_status import look

        status = look(places())
    found = boxes_of_status(status)
    if not found.boxes:
        raise AppError(
            Text("No replica of the fleet knows its speed.", "集群中没有已知速度的副本。"),
            Text(
                "Wait until `workhorse fleet status` shows one, or name machines with --machine.",
                "请等 `workhorse fleet status` 显示速度，或用 --machine 指定机器。",
            ),
        )
    told = tuple(
        Text(f"{name}: its speed is not known; left out.", f"{name}：速度未知，未计入。")
        for name in found.left_out
    )
    return Offered(found.boxes, tuple(one.box for one in found.boxes), told)


def from_machines(args: argparse.Namespace) -> Offered:
    """The boxes of machines that need not be here, as planned for the model."""
    from workhorse.cli.arguments import ask_of

    if not args.model or args.status is not None:
        raise AppError(
            Text(
                "--machine needs a MODEL, and no --status.",
                "--machine 需要指定模型，且不能与 --status 同用。",
            ),
            Text("Name what the boxes shall serve.", "请指定这些机器要运行的模型。"),
            exit_code=EXIT_USAGE,
        )
    models = read_models(args)
    wish = ask_of(args).wish
    engine = None if args.engine is None else str(args.engine)
    there: list[Boxes] = []
    kinds: list[Box] = []
    told: list[Text] = []
    for file, count in args.machine:
        box = box_of_machine(file, models, wish, engine)
        if isinstance(box, Text):
            told.append(Text(f"{file.name}: {box.en}", f"{file.name}：{box.zh}"))
            continue
        kinds.append(box)
        if count is not None:
            there.append(Boxes(box, count))
    if not kinds:
        raise AppError(
            told[0],
            Text(
                "Offer a smaller quant or model, or another box.",
                "请提供更小的量化或模型，或换一种机器。",
            ),
            exit_code=EXIT_NO,
        )
    return Offered(tuple(there), tuple(kinds), tuple(told))


def read_models(args: argparse.Namespace) -> tuple[WantedModel, ...]:
    """The models, from headers alone; one of several that cannot be read is told."""
    from workhorse.models.every import read_every

    models: list[WantedModel] = []
    broken: list[AppError] = []
    for word in args.model:
        try:
            found = read_every(word, quant=args.quant, broken=broken.append)
        except AppError as error:
            broken.append(error)
        else:
            models += map(WantedModel, found)
    if not models:
        raise broken[0]
    for told in broken:
        print_error(told, args.lang)
    return tuple(models)


def box_of_machine(
    file: Path, models: "Sequence[WantedModel]", wish: "Wish", engine: str | None
) -> Box | Text:
    """The box that a machine makes with the file that suits it; words where none runs."""
    machine = machine_in(file)
    root = file if machine is None else None
    plans = plan_here(PlanRequest(tuple(models), wish, engine, machine=machine, machine_root=root))
    options = runnable(plans)
    if not options:
        return why_nothing_runs(plans)[0]
    option, _, _ = best_option(options, wish)
    box = box_of_option(f"{file.stem}: {option.name}", option)
    if box is None:
        return Text(
            "The speed of its memory is not known: `workhorse probe --json` on it measures that.",
            "其内存速度未知：请在该机器上用 `workhorse probe --json` 测量。",
        )
    return box


def machine_in(file: Path) -> Machine | None:
    """The machine that `probe --json` wrote; None for a capture and anything else."""
    if not file.is_file():
        return None
    text = text_of(file)
    if '"learned_from"' not in text:
        return None
    try:
        return from_json(Machine, text, what=str(file))
    except AppError:  # a capture notes where its facts come from, too
        return None


def text_of(file: Path) -> str:
    """What the file says; AppError when it cannot be read or is no text."""
    try:
        if file.stat().st_size > FILE_LARGEST_BYTES:
            raise OSError(f"more than {FILE_LARGEST_BYTES // MIB} MiB")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise AppError(
            Text(f"{file} cannot be read: {why}.", f"无法读取 {file}：{why}。"),
            Text("Name a file that this user can read.", "请指定可读的文件。"),
            exit_code=EXIT_USAGE,
        ) from error
