"""The synthetic(α, β) family of FedProx: softmax problems whose clients differ by construction."""

import numpy as np
from jaxtyping import Float64, Int64

from dure import keys
from dure.data.federated import Federated
from dure.errors import ConfigError

FEATURES, CLASSES = 60, 10


def synthetic(
    alpha: float | int = 0.0,
    beta: float | int = 0.0,
    *,
    clients: int = 30,
    iid: bool = False,
    test_fraction: float | int = 0.1,
    largest: int | None = None,
    seed: int = 0,
) -> Federated:
    """Softmax problems that differ by client, with FedProx's α and β (Li et al., MLSys 2020).

    There are 60 features and 10 classes. Client k draws u ~ N(0, α), B ~ N(0, β), v ~ N(B, 1)⁶⁰,
    n = ⌊lognormal(4, 2)⌋ + 50, W ~ N(u, 1)^{60×10} and b ~ N(u, 1)^{10}. Then x ~ N(v, Σ) with
    Σ = diag(j^−1.2), and y = argmax(Wᵀx + b), without noise. As in the authors' generator, α and β are
    standard deviations. `iid=True` is their fourth set: one W, b ~ N(0, 1) for all clients, and v = 0.

    α does not change the labels: u adds the same number to all ten logits. With one seed the data for every
    α are identical, and the clients differ through their own W (at (0, 0) too) and through β. This is a
    property of the published family, kept here.

    Sizes are heavy-tailed (one client may hold most examples). The numbers are dure's own draws, seeded and
    per client, so they compare with published figures in kind, not digit by digit.

    Args:
        alpha: α ≥ 0.
        beta: β ≥ 0.
        clients: N ≥ 1 (30 in the paper).
        iid: the variant without differences between clients; α and β must then be 0.
        test_fraction: share f in [0, 1) of each client's rows held out; n − ⌊(1 − f)·n⌋ rows.
        largest: cap on a client's number of examples, at least 50; None for none, as in the paper.
        seed: of everything.

    Returns:
        x (60,) float32, y int32 in 0..9, with test rows on every client.

    Raises:
        ConfigError: an argument out of range.
    """
    _check(alpha, beta, clients, iid, test_fraction, largest)
    world = keys.generator(seed, "synthetic-world")
    common = (world.standard_normal((FEATURES, CLASSES)), world.standard_normal(CLASSES)) if iid else None
    features, labels = [], []
    for k in range(clients):
        x, y = client_rows(seed, k, alpha, beta, common, largest)
        features.append(x.astype(np.float32))
        labels.append(y.astype(np.int32))
    offsets = np.cumsum([0] + [len(y) for y in labels])
    kind = "iid" if iid else f"{alpha:g}, {beta:g}"
    data = Federated(
        {"x": np.concatenate(features), "y": np.concatenate(labels)},
        offsets,
        classes=CLASSES,
        name=f"synthetic({kind})",
        source=f"generated, seed {seed}, {clients} clients",
        licence="none needed: generated",
        citation="Li, T., Sahu, A. K., Zaheer, M., Sanjabi, M., Talwalkar, A. and Smith, V. (2020). "
        "Federated Optimization in Heterogeneous Networks. MLSys. arXiv:1812.06127",
    )
    return data.split(test_fraction, seed) if test_fraction else data


def client_rows(
    seed: int,
    k: int,
    alpha: float | int,
    beta: float | int,
    common: tuple[Float64[np.ndarray, "60 10"], Float64[np.ndarray, "10"]] | None = None,
    largest: int | None = None,
) -> tuple[Float64[np.ndarray, "n 60"], Int64[np.ndarray, "n"]]:
    """All rows of client k: features and labels before the split; `common` = (W, b) of the iid variant."""
    rng = keys.generator(seed, "synthetic", k)
    n = int(rng.lognormal(4.0, 2.0)) + 50
    n = n if largest is None else min(n, largest)
    u = alpha * rng.standard_normal()
    mean = beta * rng.standard_normal() + rng.standard_normal(FEATURES)
    weights, bias = rng.standard_normal((FEATURES, CLASSES)), rng.standard_normal(CLASSES)
    if common is not None:
        mean, (weights, bias), u = np.zeros(FEATURES), common, 0.0
    deviation = np.arange(1, FEATURES + 1) ** -0.6  # Σ = diag(j^−1.2)
    x = mean + deviation * rng.standard_normal((n, FEATURES))
    # W + u and b + u add u·(Σ_j x_j + 1) to every logit, which the argmax cannot see: leave it out, so that
    # rounding cannot break ties differently for different α
    del u
    return x, np.argmax(x @ weights + bias, axis=1)


def _check(
    alpha: float | int,
    beta: float | int,
    clients: int,
    iid: bool,
    test_fraction: float | int,
    largest: int | None,
) -> None:
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not 0 <= value < np.inf:
            raise ConfigError(f"{name}={value} is a standard deviation: a finite number, at least 0.")
    if iid and (alpha or beta):
        raise ConfigError(
            f"iid=True has no differences between clients: leave out alpha={alpha}, beta={beta}."
        )
    if isinstance(clients, bool) or not isinstance(clients, int | np.integer) or clients < 1:
        raise ConfigError(f"clients={clients!r} must be a whole number, at least 1.")
    if not 0 <= test_fraction < 1:
        raise ConfigError(f"test_fraction={test_fraction} must lie in [0, 1), such as 0.1.")
    if largest is not None and largest < 50:
        raise ConfigError(f"largest={largest}: clients of this family have at least 50 examples.")
