"""The plan of a service that `workhorse up` runs here, as it tells the user who runs it."""

from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import aiohttp

from workhorse.bench.service import Service, ask
from workhorse.codec import from_json
from workhorse.config import SHARED, Places
from workhorse.errors import AppError
from workhorse.records import Machine, Plan
from workhorse.run.run_file import ServiceFile, service_files

PLANS_PATH = "/workhorse/plans"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Decided:
    """What one engine of a service was started with."""

    model_name: str  # as clients call it
    plan: Plan
    machine: Machine  # as it was planned for, before the engine ran
    engines: int = 1  # of this model behind the one address


def own_file(where: Places, url: str) -> ServiceFile | None:
    """The file of the service at this address, if it runs here and may be read."""
    address = urlsplit(url)
    if address.hostname not in LOOPBACK:
        return None
    for folder in dict.fromkeys((where.run, Places(SHARED).run)):
        with suppress(OSError):
            for _, file in service_files(folder):
                if file.port == address.port and file.lives():
                    return file
    return None


async def decided_by(
    session: aiohttp.ClientSession, service: Service, where: Places
) -> Decided | None:
    """What the service at this address was started with; None where that is not surely known.

    Only a service that is written down here and lives is asked, with the token of its own file,
    and only the plan of the very model that is asked for counts.
    """
    file = own_file(where, service.url)
    if file is None:
        return None
    own = replace(service, headers={"Authorization": f"Bearer {file.token}"})
    try:
        status, body = await ask(session, own, "GET", PLANS_PATH)
        plans = from_json(tuple[Decided, ...], body, what=PLANS_PATH) if status == 200 else ()
    except AppError:  # it ends, or is of another version
        return None
    same = [one for one in plans if one.model_name == service.model]
    return replace(same[0], engines=len(same)) if same else None


def with_speeds(now: Machine, planned: Machine) -> Machine:
    """The machine as it is now, with the speeds that were measured before any engine ran on it."""
    copies = {gpu.index: gpu.copies for gpu in planned.gpus}
    return replace(
        now,
        memory=replace(now.memory, bandwidths=planned.memory.bandwidths),
        gpus=tuple(replace(gpu, copies=copies.get(gpu.index, gpu.copies)) for gpu in now.gpus),
    )
