"""Federated fine-tuning with low-rank adapters: a tiny transformer learns a language, then its clients' dialects.

The transformer is pretrained centrally on sentences in a made-up language, in seconds. Then clients, each with its
own dialect, train adapters on its attention and hidden layers, and the server averages them in more than one way.

    python examples/lora.py
    python examples/lora.py FedIT FFALoRA FlexLoRA FedExLoRA FLoRA
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dure

LETTERS = " .abcdefghijklmnoprstuvwy"
LENGTH = 24
WIDTH, HEADS, HIDDEN = 32, 2, 64

NOUNS = ["cat", "dog", "bird", "cow", "mouse"]
DIALECTS = [  # endings that clients put on nouns, and their word for "sees"
    ("", "sees"),
    ("in", "spyr"),
    ("o", "vede"),
    ("ko", "bogo"),
    ("us", "videt"),
]


def sentences(dialect: int, number: int, seed: int) -> np.ndarray:
    """Windows (number, LENGTH + 1) of letters' numbers from a text in a dialect; 0 is the language itself."""
    rng = np.random.default_rng([dialect, seed])
    ending, sees = DIALECTS[dialect]
    text = ""
    while len(text) < number * (LENGTH + 1):
        one, other = (NOUNS[i] + ending for i in rng.integers(len(NOUNS), size=2))
        text += f"the {one} {sees} the {other}. "
    codes = np.array([LETTERS.index(c) for c in text], np.int32)
    return codes[: number * (LENGTH + 1)].reshape(number, LENGTH + 1)


def clients(dialects: list[int], number: int) -> dure.Federated:
    """One client for each dialect: the letters of a window, and the letters that follow."""
    train = np.concatenate([sentences(d, number, seed=0) for d in dialects])
    test = np.concatenate([sentences(d, number // 2, seed=1) for d in dialects])
    return dure.Federated(
        {"x": train[:, :-1], "y": train[:, 1:]},
        np.arange(len(dialects) + 1) * number,
        test={"x": test[:, :-1], "y": test[:, 1:]},
    )


# ----- a transformer of one layer -------------------------------------------------------------------------


def init(key):
    keys = iter(jax.random.split(key, 9))

    def weights(*shape):
        return jax.random.normal(next(keys), shape) / np.sqrt(shape[0])

    return {
        "letters": weights(len(LETTERS), WIDTH),
        "places": weights(LENGTH, WIDTH),
        "attention": {name: weights(WIDTH, WIDTH) for name in ("query", "key", "value", "out")},
        "hidden": {"up": weights(WIDTH, HIDDEN), "down": weights(HIDDEN, WIDTH)},
        "norm": [jnp.ones(WIDTH) for _ in range(3)],
        "head": weights(WIDTH, len(LETTERS)),
    }


def normed(scale, x):
    x = x - x.mean(-1, keepdims=True)
    return scale * x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5)


def attention(p, x):
    split = (*x.shape[:2], HEADS, WIDTH // HEADS)
    q, k, v = ((x @ p[name]).reshape(split) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(WIDTH // HEADS)
    past = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    shares = jax.nn.softmax(jnp.where(past, scores, -1e9))
    return jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape) @ p["out"]


def apply(p, x):
    h = p["letters"][x] + p["places"]
    h = h + attention(p["attention"], normed(p["norm"][0], h))
    h = h + jax.nn.gelu(normed(p["norm"][1], h) @ p["hidden"]["up"]) @ p["hidden"]["down"]
    return normed(p["norm"][2], h) @ p["head"]


TRANSFORMER = dure.Model.from_functions(init, apply, name="transformer")
ADAM = dure.Optimizer(optax.adam, {"learning_rate": 0.01})


def pretrained(epochs: int = 10, number: int = 160):
    """The transformer's parameters after central training on the language."""
    run = dure.simulate(
        dure.FedAvg(),
        dure.classification(TRANSFORMER),
        clients([0], number),
        rounds=1,
        epochs=epochs,
        batch_size=16,
        optimizer=ADAM,
    )
    return run.model


def adapted(base, rank: int = 4) -> dure.Model:
    """The pretrained transformer with adapters on its attention and hidden layers."""
    return dure.lora(TRANSFORMER, targets=["attention", "hidden"], rank=rank, alpha=2 * rank, weights=base)


def main() -> None:
    base = pretrained()
    model, dialects = adapted(base), clients([1, 2, 3, 4], 64)
    print(f"{'method':10}  {'loss':>6}  {'accuracy':>8}  {'up, B':>7}  {'down, B':>7}   a client and round")
    for name in sys.argv[1:] or ["FFALoRA", "FedExLoRA"]:
        run = dure.simulate(
            getattr(dure, name)(),
            dure.classification(model),
            dialects,
            rounds=8,
            epochs=2,
            batch_size=16,
            optimizer=ADAM,
            evaluate_every=8,
        )
        sent = run.config["messages"]
        print(
            f"{name:10}  {run.final['test_loss']:6.3f}  {run.final['test_accuracy']:8.3f}  "
            f"{sent['uplink_bytes']:7,}  {sent['downlink_bytes']:7,}"
        )
    plain = dure.merge_lora(model, run.state_dict())
    print(f"The model without adapters has {len(plain)} tensors, such as attention/query of shape", end=" ")
    print(plain["attention/query"].shape)


if __name__ == "__main__":
    main()
