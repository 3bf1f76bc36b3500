"""Everything of the GPUs that files and the driver tell, put together."""

from dataclasses import dataclass, replace

from workhorse.knowledge.gpus import capability_of
from workhorse.machine.files import CAPTURE_NOTE, HostFiles
from workhorse.machine.gpu import make_gpus
from workhorse.machine.gpu_trouble import find_troubles, read_surroundings, with_lost_cards
from workhorse.machine.kernel_log import read_events
from workhorse.machine.links import read_links
from workhorse.machine.nvml import NvmlAnswers
from workhorse.machine.pci import read_acs_redirect, read_cards
from workhorse.machine.smi_text import read_smi
from workhorse.records import Gpu, GpuDriver, GpuLink, GpuTrouble, KernelEvent


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The GPUs, their driver, how they reach each other, what fails; the kernel's events too."""

    gpus: tuple[Gpu, ...]
    driver: GpuDriver | None
    links: tuple[GpuLink, ...]
    troubles: tuple[GpuTrouble, ...]
    events: tuple[KernelEvent, ...] | None
    acs_redirect: bool | None
    from_text: bool  # nvidia-smi's text stood in for NVML
    told: bool  # driver, bus or log said something: without it there may be cards


def read_gpus(files: HostFiles, answers: NvmlAnswers | None, *, container: bool) -> GpuFacts:
    """What is known of the GPUs.

    `answers` is what NVML said, None without its library; `container`: we run inside of one.
    """
    answers, from_text = _best_answers(files, answers)
    cards = read_cards(files)
    around, events = read_surroundings(files, container=container), read_events(files)
    gpus, driver = make_gpus(answers, cards, around.module)
    gpus = tuple(_with_capability(gpu) for gpu in gpus)
    return GpuFacts(
        gpus=gpus,
        driver=driver,
        links=read_links(files, gpus, answers),
        troubles=with_lost_cards(find_troubles(answers, cards, around), events),
        events=events,
        acs_redirect=read_acs_redirect(files, cards),
        from_text=from_text,
        told=(
            files.live
            # What `probe --save` writes is all that it saw.
            or '"personal_data"' in (files.text(CAPTURE_NOTE) or "")
            or answers is not None
            or around.module is not None
            or around.bus
            or bool(cards)
            or files.said("lspci", "-vv") is not None
        ),
    )


def _best_answers(files: HostFiles, answers: NvmlAnswers | None) -> tuple[NvmlAnswers | None, bool]:
    """NVML's answers, or nvidia-smi's where NVML has none; a driver that hangs is left alone."""
    if answers is not None and (answers.error is None or answers.error.code is None):
        return answers, False
    told = read_smi(files)
    if told is None or (answers is not None and not told.gpus):
        return answers, False
    return told, True


def _with_capability(gpu: Gpu) -> Gpu:
    """nvidia-smi's text leaves the compute capability out: the table of cards knows it."""
    capability = capability_of(gpu)
    return gpu if capability is None else replace(gpu, compute_capability=capability)
