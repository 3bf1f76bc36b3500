"""One replica as a Serve deployment: Serve places, starts, watches and replaces this class."""

from pathlib import Path
from typing import Any

from workhorse.codec import from_json
from workhorse.config import places
from workhorse.errors import AppError
from workhorse.fleet.cannot_start import in_a_line
from workhorse.fleet.member import this_member
from workhorse.fleet.on_ray.lender import Lenders
from workhorse.fleet.pass_through import Receive, Scope, Send
from workhorse.fleet.replica_life import Node, ReplicaLife
from workhorse.fleet.secret import read_token, replica_key
from workhorse.fleet.serve_settings import spec_in
from workhorse.fleet.spec import ReplicaSpec
from workhorse.text import Text


class CannotStartError(Exception):
    """What Serve reports of a replica that does not start; see `cannot_start`."""


class Replica:
    """What runs in the replica's process.

    Its HTTP port opens once `reconfigure` has returned: whoever reaches it finds a ready engine.
    """

    def __init__(self) -> None:
        self._life: ReplicaLife | None = None
        self._lenders = Lenders()  # what other nodes lend; ends with this process

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Start what the configuration says; Serve calls this once after the constructor."""
        try:
            if self._life is not None:
                raise _changed()
            spec = from_json(ReplicaSpec, spec_in(user_config) or "", what="the replica's spec")
            where = places()
            member = this_member(where)
            key = replica_key(read_token(Path(member.token_file)))
            node = Node(member.name, member.node_address, key)
            life = ReplicaLife(spec, where, node, lend=self._lenders.lend)
            await life.start()
            self._life = life
        except AppError as error:
            raise CannotStartError(in_a_line(error)) from None

    async def check_health(self) -> None:
        """Serve asks this every ten seconds; raising three times has the replica replaced."""
        if self._life is not None and not self._life.is_well:
            raise RuntimeError("the engine has no owner any more")

    def __serve_build_asgi_app__(self) -> Any:
        """The application behind the replica's port; Serve asks before `reconfigure`."""

        # Not the method itself: uvicorn would take it for an application of ASGI 2.
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await self._app(scope, receive, send)

        return app

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._life is None:
            raise RuntimeError("the replica has not started")
        else:
            await self._life.app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Serve sends the shutdown once the running answers have ended, or their time is over."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if self._life is not None:
                    await self._life.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _changed() -> AppError:
    return AppError(
        Text("A replica that runs was told another plan.", "运行中的副本收到了另一个方案。"),
        Text("Remove it, then put it again.", "请先移除该副本，再重新部署。"),
    )
