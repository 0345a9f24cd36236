"""Nearly all of the time here goes into compiling small programs: without optimisation it is half."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Compile without most optimisations."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
