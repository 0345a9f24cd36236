"""Whether numbers fall into two groups: the gap statistic (Tibshirani, Walther and Hastie, 2001) with 2-means."""

import numpy as np

#: Uniform samples that the spread is compared with.
_SAMPLES = 20


def _spreads(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each row (s, n): squares about its mean, about the best two means, and how many are in the lower group."""
    ranked = np.sort(values, axis=1)
    n = ranked.shape[1]
    counts = np.arange(1, n + 1)
    sums, squares = np.cumsum(ranked, 1), np.cumsum(ranked**2, 1)
    below = squares - sums**2 / counts
    upper, above = counts[::-1][1:], squares[:, -1:] - squares[:, :-1]
    above = above - (sums[:, -1:] - sums[:, :-1]) ** 2 / upper
    both = np.maximum(below[:, :-1] + above, 0.0)
    best = both.argmin(1)
    return np.maximum(below[:, -1], 0.0), both[np.arange(len(both)), best], best + 1


def upper_group(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(n,) bool: the upper one of two groups, by exact 2-means; none where one group explains the numbers as well.

    Two are seen where gap(1) < gap(2) − s(2); numbers are brought to [0, 1] first.

    Args:
        values: (n,) finite, n ≥ 3.
        generator: draws the uniform samples.
    """
    low, high = values.min(), values.max()
    if not high > low:
        return np.zeros(len(values), bool)
    one, two, _ = _spreads(generator.random((_SAMPLES, len(values))))
    here, split, count = _spreads(((values - low) / (high - low))[None])
    with np.errstate(divide="ignore"):  # two groups without any spread: an infinite gap
        gap_one = np.log(one).mean() - np.log(here[0])
        gap_two = np.log(two).mean() - np.log(split[0])
    error = np.log(two).std() * np.sqrt(1.0 + 1.0 / _SAMPLES)
    if not gap_one < gap_two - error:
        return np.zeros(len(values), bool)
    return np.asarray(values > np.sort(values)[count[0] - 1])
