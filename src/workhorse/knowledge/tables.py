"""Opens the knowledge tables that ship beside this file."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def table(name: str) -> dict[str, Any]:
    """The table `name`.toml as plain values; each row carries its source and date."""
    return tomllib.loads(files("workhorse.knowledge").joinpath(f"{name}.toml").read_text("utf-8"))
