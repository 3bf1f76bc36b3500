"""What is asked for, from the command line and the settings together: one ask for each engine."""

import os
from dataclasses import replace
from pathlib import Path

from workhorse.config import places
from workhorse.models.pull_record import find_pulled
from workhorse.models.read import local_checkpoint, servable
from workhorse.plan.wish import HEADROOM
from workhorse.settings import ModelSettings, Settings
from workhorse.up.decide import Ask, wants_checkpoint
from workhorse.up.projector import NONE


def asks_of(ask: Ask, settings: Settings) -> tuple[Ask, ...]:
    """One ask for each engine: the model of the command line, else those of the settings."""
    if ask.model is not None or not settings.model:
        return (ask,)
    return tuple(with_settings(ask, one) for one in settings.model)


def with_settings(ask: Ask, one: ModelSettings) -> Ask:
    """The ask for a model of the settings; what the command line says goes before it."""
    wish = replace(
        ask.wish,
        context_tokens=ask.wish.context_tokens or one.context,
        slots=ask.wish.slots or one.slots,
        purpose=ask.wish.purpose or one.purpose,
    )
    if one.headroom_percent is not None and wish.headroom == HEADROOM:
        wish = replace(wish, headroom=one.headroom_percent / 100)
    model, engine = beside_config(one.model, ask.config), beside_config(one.engine, ask.config)
    return replace(
        ask,
        model=model,
        quant=ask.quant or one.quant,
        engine=ask.engine or (Path(engine) if engine else None),
        wish=wish,
        mmproj=ask.mmproj or projector_of(one, ask.config),
        gpus=ask.gpus or one.gpus,
        engines=ask.engines or one.engines,
        split=ask.split or one.split,
    )


def projector_of(one: ModelSettings, config: Path | None) -> str | None:
    """The projector that the settings name, beside the settings file if it lies there."""
    return one.mmproj if one.mmproj == NONE else beside_config(one.mmproj, config)


def beside_config(name: str | None, config: Path | None) -> str | None:
    """A file that lies beside the settings file by its whole path; any other name as it is.

    A service is started in another folder than the one in which its settings were written.
    """
    if name is None or config is None:
        return name
    beside = config.absolute().parent / name
    return str(beside) if beside.exists() else name


def from_here(ask: Ask, models: Path) -> Ask:
    """The ask with a model of a hub or an address named by where it was pulled to, if it was."""
    if not ask.model:
        return ask
    found = find_pulled(str(ask.model), ask.quant, models, os.environ)
    return ask if found is None else replace(ask, model=found, quant=None)


def checked(ask: Ask, models: Path | None = None) -> Ask:
    """The ask with the file that would be served; AppError for a name that cannot be served.

    `models` is where models are pulled to; None: where this user's are.
    """
    ask = from_here(ask, models or places().models)
    if not ask.model:
        return ask
    if local_checkpoint(ask.model, first=wants_checkpoint(ask)) is not None:
        return ask  # whether an engine that is here reads it shows when it is chosen
    file = servable(ask.model, ask.quant)
    return replace(ask, model=file, quant=ask.quant if file == Path(ask.model) else None)
