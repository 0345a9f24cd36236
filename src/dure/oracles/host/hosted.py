"""What models have in common whose local work one host does and whose loss JAX can call."""

from typing import Any

from dure.oracles.host.base import Host
from dure.oracles.host.bridge import Handle
from dure.oracles.host.executors import workers
from dure.oracles.host.pool import forget_with
from dure.oracles.model import Outside


class Hosted(Outside):
    """An `Outside` that asks one host.

    Attributes:
        handle: the host bound to the run's rows; None before.
    """

    handle: Handle | None

    def loss(self, loss: Any) -> Any:
        """See `Outside`."""
        return loss

    def prepare(self, devices: int) -> None:
        """See `Outside`."""
        if self.handle is not None:
            self.handle.workers().prepare(self.handle.host, devices)

    def failed(self, task: Any) -> list[Any]:
        """See `Outside`."""
        return [] if self.handle is None else self.handle.taken()


def asked(host: Host, executor: str) -> Handle:
    """The host, to be asked where an executor says; workers forget it when nothing refers to it any more."""
    forget_with(host)
    return Handle(host, workers=workers(executor))
