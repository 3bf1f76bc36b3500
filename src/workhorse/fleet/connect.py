"""This process as a client of the fleet: Ray is imported here, once its environment is set."""

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from workhorse.errors import AppError
from workhorse.fleet.member import Member
from workhorse.fleet.ray_start import RAY_REQUIRED, cluster_environment, without_ray
from workhorse.text import Text

if TYPE_CHECKING:
    from workhorse.fleet.on_ray.cluster import Cluster


def ray_version() -> str | None:
    """The version of Ray that is installed here; None: it is not. Ray is not imported."""
    try:
        return version("ray")
    except PackageNotFoundError:
        return None


def refuse_without_ray() -> None:
    """An AppError when Ray is not installed here, or another version than this program knows."""
    found = ray_version()
    if found == RAY_REQUIRED:
        return
    seen = (
        Text("Ray is not installed here.", "本机未安装 Ray。")
        if found is None
        else Text(
            f"Ray {found} is installed here; the fleet is made for {RAY_REQUIRED}.",
            f"本机安装的是 Ray {found}，集群功能需要 {RAY_REQUIRED}。",
        )
    )
    raise AppError(
        seen,
        Text(
            f'Type: {sys.executable} -m pip install "ray[serve]=={RAY_REQUIRED}"',
            f'请执行：{sys.executable} -m pip install "ray[serve]=={RAY_REQUIRED}"',
        ),
    )


def connect(member: Member) -> "Cluster":
    """Reach the fleet that this machine is a node of; blocks, seconds. Once a process.

    Raises AppError: Ray is missing, the head does not answer, the token is another one.
    """
    refuse_without_ray()
    settings = cluster_environment(member.token_file, member.temp_dir, member.ports)
    kept = without_ray(os.environ)
    for name in set(os.environ) - set(kept):
        del os.environ[name]
    os.environ.update(settings)
    from workhorse.fleet.on_ray.cluster import Cluster

    return Cluster.connect(member)
