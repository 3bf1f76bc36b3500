"""Runs to compare, from the store by their number or from files by their path."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from workhorse.bench.report.case import Case
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.records import Attribution, Measurement
from workhorse.store import RUN_NAME, Store
from workhorse.text import Text

FILE_BYTES_MAX = 64 * 2**20
CASES_MAX = 12  # more colours cannot be told apart


def read_cases(
    names: Sequence[str], store: Store
) -> tuple[tuple[Case, ...], tuple[tuple[str, AppError], ...]]:
    """The cases that can be read, in their order, and the names that cannot with the reason.

    A name that is a file is that file; else the number of a stored run. Without names: the
    newest run and the newest attribution. Raises `AppError` for too many names.
    """
    if len(names) > CASES_MAX:
        raise too_many(len(names))
    cases: list[Case] = []
    unread: list[tuple[str, AppError]] = []
    for name in names or newest(store):
        try:
            cases.append(read_case(name, store))
        except AppError as error:
            unread.append((name, error))
    return tuple(cases), tuple(unread)


def newest(store: Store) -> list[str]:
    """The newest run and the newest attribution."""
    runs = store.runs()
    measured = [run.name for run in runs if run.kind != "explain"][:1]
    return measured + [run.name for run in runs if run.kind == "explain"][:1]


def read_case(name: str, store: Store) -> Case:
    """One run."""
    path = Path(name)
    if RUN_NAME.fullmatch(name) is None or path.is_file():
        return from_file(name, path)
    told = next((run for run in store.runs() if run.name == name), None)
    label = told.label if told and told.label else None
    if name.startswith("explain-"):
        return of_attribution(name, store.attribution(name), label)
    return of_measurements(name, store.run(name), label, told.model_name if told else None)


def from_file(name: str, path: Path) -> Case:
    """A file that `bench --save` or `explain --save` wrote."""
    try:
        with path.open("rb") as file:
            document = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise unreadable(name, str(error)) from error
    if len(document) > FILE_BYTES_MAX:
        raise unreadable(name, f"> {FILE_BYTES_MAX // 2**20} MiB")
    try:
        found = msgspec.json.decode(document, type=tuple[Measurement, ...] | Measurement)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        try:
            told = msgspec.json.decode(document, type=Attribution)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise unreadable(name, str(problem)) from problem
        return of_attribution(path.name, told, path.stem)
    runs = (found,) if isinstance(found, Measurement) else found
    if not runs:
        raise unreadable(name, "[]")
    return of_measurements(path.name, runs, path.stem, None)


def of_measurements(
    name: str, runs: Sequence[Measurement], label: str | None, model_name: str | None
) -> Case:
    """Measurements as a case."""
    conditions = runs[0].conditions
    served = conditions.served_by
    if conditions.plan is not None:
        model_name = conditions.plan.model_name  # as the service calls it
    if model_name is None and served is not None:
        model_name = served.model
    label = label or model_name or conditions.url
    return Case(name, label, conditions.when, conditions.url, model_name, tuple(runs))


def of_attribution(name: str, found: Attribution, label: str | None) -> Case:
    """An attribution as a case."""
    label = label or found.model_name or found.url
    return Case(name, label, found.when, found.url, found.model_name, attribution=found)


def unreadable(name: str, said: str) -> AppError:
    """Neither a stored run nor a file of ours."""
    return AppError(
        Text(f"{name!r} is no run that can be read: {said}", f"{name!r} 不是可读取的测量：{said}"),
        Text(
            "Name a number of `workhorse report --list`, or a file that `bench --save` wrote.",
            "请给出 workhorse report --list 中的编号，或 bench --save 写出的文件。",
        ),
        exit_code=EXIT_USAGE,
    )


def too_many(count: int) -> AppError:
    """More runs than can be told apart."""
    return AppError(
        Text(
            f"{count} runs are too many for one report; {CASES_MAX} can be told apart.",
            f"一份报告放不下 {count} 次测量；最多 {CASES_MAX} 次。",
        ),
        Text("Name fewer.", "请减少数量。"),
        exit_code=EXIT_USAGE,
    )
