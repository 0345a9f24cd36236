"""Handwritten digits by writer: consecutive blocks of the scikit-learn digits belong to one writer."""

from itertools import pairwise

import numpy as np

from dure import keys
from dure.data.federated import Federated
from dure.errors import ConfigError, DataError

# Where the blocks end in file order. Eight of them hold 13 images of each digit, the others at least 9.
BOUNDS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667, 1797)


def digits(*, test_fraction: float | int = 0.3, seed: int = 0) -> Federated:
    """1,797 images of 8×8 pixels, written in 14 blocks: one client per block, with its own test rows.

    The images are the test part of the UCI optical digits in file order. UCI speaks of 13 writers for it, so
    one writer probably filled two blocks: these are 14 clients, not necessarily 14 people. There is no
    central test set beside the pooled test rows of the clients.

    Args:
        test_fraction: share f in [0, 1) of each client's rows held out: the last n − ⌊(1 − f)·n⌋ rows of a
            random order; 0 for none.
        seed: of that order; all blocks in turn read numpy.random.default_rng(seed), a split for which
            reference figures exist.

    Returns:
        x (64,) float32 in [0, 1] (pixels / 16), y int32 in 0..9.

    Raises:
        ConfigError: test_fraction outside [0, 1).
        DataError: scikit-learn's file is not the one that the block bounds describe.
    """
    if not 0 <= test_fraction < 1:
        raise ConfigError(f"test_fraction={test_fraction} must lie in [0, 1), such as 0.3.")
    keys.digest(seed, "split")  # the same error for a wrong seed as everywhere
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    if x.shape != (BOUNDS[-1], 64):
        raise DataError(
            f"scikit-learn's digits have shape {x.shape}, not (1797, 64); the writer bounds do not fit."
        )
    x, y = (x / 16).astype(np.float32), y.astype(np.int32)
    rng = np.random.default_rng(seed)
    train: list[np.ndarray] = []
    test: list[np.ndarray] = []
    for start, stop in pairwise(BOUNDS):
        block = np.arange(start, stop)
        if test_fraction:
            order = rng.permutation(block)
            kept = int(len(block) * (1 - test_fraction) + 1e-9)  # 1e-9 forgives 0.7·130 = 90.99…9
            block, rest = order[:kept], order[kept:]
            test.append(rest)
        train.append(block)
    rows, held = np.concatenate(train), np.concatenate(test) if test else None
    return Federated(
        {"x": x[rows], "y": y[rows]},
        np.cumsum([0] + [len(r) for r in train]),
        client_test=None if held is None else {"x": x[held], "y": y[held]},
        client_test_offsets=None if held is None else np.cumsum([0] + [len(r) for r in test]),
        client_names=[f"writer {k}" for k in range(len(train))],
        classes=10,
        class_names=[str(c) for c in range(10)],
        name="digits",
        source="scikit-learn load_digits: UCI Optical Recognition of Handwritten Digits, test part",
        licence="CC BY 4.0, E. Alpaydin and C. Kaynak (UCI Machine Learning Repository, 1998)",
        citation="Alpaydin, E. and Kaynak, C. (1998). Optical Recognition of Handwritten Digits. "
        "UCI Machine Learning Repository. doi:10.24432/C50P49",
    )
