"""Models that come inside a wheel of a package registry."""

from dataclasses import dataclass
from functools import cache

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """One model file (`member`) inside one wheel, both pinned by hash and size."""

    name: str
    package: str
    version: str
    member: str
    wheel_sha256: str
    wheel_bytes: int
    file_sha256: str
    file_bytes: int
    licence: str
    source: str
    date: str

    @property
    def file_name(self) -> str:
        """The file's name without the folders of the wheel."""
        return self.member.rpartition("/")[2]

    @property
    def requirement(self) -> str:
        """The exact version, as pip wants it."""
        return f"{self.package}=={self.version}"


@cache
def packaged_models() -> dict[str, PackagedModel]:
    """Every packaged model by its name."""
    return {row.name: row for row in rows("packaged_models", "model", PackagedModel)}
