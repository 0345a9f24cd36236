"""Clients that keep their rows elsewhere."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dure.data.federated import Federated
from dure.errors import DataError


def counts(
    examples: Any,
    *,
    client_names: Sequence[str] | None = None,
    name: str = "counts",
) -> Federated:
    """How many examples each client has, for clients whose code reads the rows itself (`oracle`, `flower`).

    The columns "x" and "y" are there with no values in them, (n, 0): no memory, and no model trains on them by
    mistake.

    Args:
        examples: (N,) integers n_k ≥ 0 of each client, its weight.
        client_names: N names, or None.
        name: a word for reports.

    Raises:
        DataError: not whole numbers, a negative one, no clients, no examples at all.
    """
    sizes = np.asarray(examples)
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 0).any():
        raise DataError(f"examples={examples!r} must be one whole number of at least 0 for each client.")
    nothing = np.zeros((int(sizes.sum()), 0), np.float32)
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return Federated({"x": nothing, "y": nothing}, offsets, client_names=client_names, name=name)
