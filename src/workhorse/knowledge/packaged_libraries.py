"""System libraries that come inside a wheel of a package registry."""

from dataclasses import dataclass

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class PackagedLibrary:
    """One shared library (`member`) inside one wheel, pinned by the wheel's hash."""

    name: str  # what a program asks the loader for
    architecture: str  # as `uname -m` says
    package: str
    version: str
    platform: str  # the wheel's platform tag, as pip wants it
    member: str
    wheel_sha256: str
    licence: str
    source: str
    date: str


def packaged_library(name: str, architecture: str) -> PackagedLibrary | None:
    """The library `name` for a processor architecture; None when no known wheel has it."""
    for row in rows("packaged_libraries", "library", PackagedLibrary):
        if (row.name, row.architecture) == (name, architecture):
            return row
    return None
