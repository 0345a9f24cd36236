"""Who answers the compiled round's questions, by the name that a user gives."""

from collections.abc import Callable

from dure.errors import ConfigError
from dure.oracles.host.base import Workers
from dure.oracles.host.pool import pool


def workers(executor: str) -> Callable[[], Workers]:
    """What finds the workers of "local" or "ray" when they are needed.

    Raises:
        ConfigError: Ray is not installed.
    """
    if executor == "local":
        return pool
    try:
        from dure.oracles.host.ray import ray_pool
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError(
            "executor='ray' needs Ray, which is not installed here: pip install \"dure[ray]\", on every machine of "
            "the cluster."
        ) from error
    return ray_pool
