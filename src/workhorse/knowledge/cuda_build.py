"""How CUDA code is made for a card: architectures, packages, options, costs."""

from dataclasses import dataclass

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture that code can be made for; see cuda_build.toml."""

    name: str  # sm_70
    cards: str
    source: str
    date: str
    suffix: str = ""  # `a`: code for this chip alone

    @property
    def code(self) -> str:
        """As compilers and files call it: `sm_70`, `sm_120a`."""
        return f"{self.name}{self.suffix}"

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a card of that capability runs machine code for this."""
        if self.suffix:
            return capability == self.capability
        return capability[0] == self.capability[0] and capability >= self.capability

    @property
    def number(self) -> int:
        """`__CUDA_ARCH__`: 700 for sm_70."""
        return int(self.name.removeprefix("sm_")) * 10

    @property
    def capability(self) -> tuple[int, int]:
        """(7, 0) for sm_70."""
        return self.number // 100, self.number // 10 % 10

    @property
    def ptx(self) -> str:
        """`compute_70` for sm_70."""
        return self.code.replace("sm_", "compute_")


@dataclass(frozen=True, slots=True)
class CudaPackage:
    """One package that is fetched to build or to run CUDA code."""

    name: str
    lock: str
    used: str
    licence: str
    nvidia: bool  # NVIDIA's: the user fetches it, nobody passes it on
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class CudaOption:
    """One choice of kernels."""

    name: str
    defines: tuple[str, ...]
    pairs: tuple[str, ...]  # K-V types of flash attention's vector kernels, or `all`
    what: str
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class CompileCost:
    """CPU-seconds that files of one kind take to compile, for one architecture."""

    start: str  # of the file's name
    seconds: float
    source: str
    date: str


DEFAULT_OPTION = "default"


def architectures() -> tuple[Architecture, ...]:
    """What code can be made for, the oldest first."""
    return rows("cuda_build", "architecture", Architecture)


def cuda_packages() -> tuple[CudaPackage, ...]:
    """What is fetched to build CUDA code, and cuBLAS to run it."""
    return rows("cuda_build", "package", CudaPackage)


def cuda_options() -> tuple[CudaOption, ...]:
    """The choices, the default first."""
    return rows("cuda_build", "option", CudaOption)


def compile_seconds(name: str) -> float:
    """What a file takes to compile, from the longest start of its name that is known."""
    found = [row for row in rows("cuda_build", "cost", CompileCost) if name.startswith(row.start)]
    return max(found, key=lambda row: len(row.start)).seconds
