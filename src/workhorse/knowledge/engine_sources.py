"""Where the source of an engine comes from."""

from dataclasses import dataclass

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class EngineSource:
    """One source archive of a package registry and the engine's tree in it."""

    engine: str
    package: str
    version: str  # of the package
    sha256: str
    n_bytes: int
    tree: str  # folder below the archive's first one
    engine_version: str
    commit: str  # of the engine
    licence: str
    source: str
    date: str

    @property
    def requirement(self) -> str:
        """As pip wants it, with the hash."""
        return f"{self.package}=={self.version} --hash=sha256:{self.sha256}"


def llamacpp_source() -> EngineSource:
    """The llama.cpp that `engine build` builds."""
    return next(
        row for row in rows("engine_sources", "source", EngineSource) if row.engine == "llama.cpp"
    )
