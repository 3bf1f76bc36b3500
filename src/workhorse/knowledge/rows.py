"""Turns the rows of a knowledge table into frozen records, strictly."""

from dataclasses import fields
from typing import TypeVar

import msgspec

from workhorse.knowledge.tables import table

R = TypeVar("R")


def rows(table_name: str, array: str, kind: type[R]) -> tuple[R, ...]:
    """Every `[[array]]` row of `table_name`.toml as a `kind` (a frozen dataclass).

    A column that `kind` does not have, a missing one or a wrong type raises `ValueError`: the
    tables ship with the product, so this is a fault of ours and not of a user.
    """
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    found = table(table_name)[array]
    for row in found:
        if strange := set(row) - known:
            raise ValueError(f"{table_name}.toml: {kind.__name__} has no {sorted(strange)}")
    return msgspec.convert(found, tuple[kind, ...])  # type: ignore[valid-type]
