"""Reads every model of a repository or directory: what a comparison of quants starts from."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from workhorse.errors import AppError
from workhorse.models.choice import gguf_models
from workhorse.models.folders import opened_folder
from workhorse.models.read import read_model
from workhorse.models.sources import LocalSource, source_of
from workhorse.records import Model

# What a checkpoint is reckoned in: the mixes that publishers offer, from 8 bits down to 4.
QUANTS = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M")
MODELS_MAX = 40  # a publisher's whole range; each costs requests of a few MB


def read_every(
    reference: str | Path,
    *,
    quant: str | None = None,
    environment: Mapping[str, str] | None = None,
    pause: Callable[[float], None] = time.sleep,
    broken: Callable[[AppError], None] | None = None,
) -> tuple[Model, ...]:
    """The models that `reference` names, from headers alone.

    One file is one model; of a repository or directory it is every GGUF model in it, and a
    checkpoint counts once for each usual quant; `quant` leaves one of them. Raises AppError as
    `read_model` does; with `broken` a file among several that cannot be read is told there.
    """
    environment = os.environ if environment is None else environment
    source = source_of(str(reference), environment)
    if quant is not None or (isinstance(source, LocalSource) and not source.path.is_dir()):
        return (read_model(reference, quant=quant, environment=environment, pause=pause),)
    with opened_folder(source, environment, pause) as (folder, wanted):
        files = () if wanted is not None else gguf_models(folder.listing()).values()
        names = [folder.name_of(first) for first, _ in files][:MODELS_MAX]
    if wanted is not None:
        return (read_model(reference, environment=environment, pause=pause),)
    if names:
        found = []
        for name in names:
            try:
                found.append(read_model(name, environment=environment, pause=pause))
            except AppError as error:
                if broken is None:
                    raise
                broken(error)
        return tuple(found)
    return tuple(
        read_model(reference, quant=quant, environment=environment, pause=pause) for quant in QUANTS
    )
