"""What the gateway needs of whoever owns the engine."""

from typing import Protocol

READY = "ready"


class Backend(Protocol):
    """An engine that may be starting, ready, dying or being started again."""

    @property
    def state(self) -> str:
        """`ready`, or one word for what it is doing instead."""
        ...

    @property
    def restarts(self) -> int:
        """How often the engine was started again after it had died."""
        ...

    async def address(self, wait_s: float) -> str:
        """The base URL of the ready engine, such as `http://127.0.0.1:40001`.

        Waits up to `wait_s` seconds while it is being started; raises an `AppError` that says
        why and who speaks when it is not ready by then.
        """
        ...
