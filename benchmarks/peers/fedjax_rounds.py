"""FedJAX: its for-each-client loop, its optimisers, its tree sums; `processes` > 1 asks for its pmap
backend.

This is `fedjax.algorithms.fed_avg` but for two things, without which the local work would not be the same:
batches come from FedJAX's padded batches with their mask, so that the last short batch is exact (the stock
algorithm fills it up with repeated examples), over rows shuffled afresh each epoch; and norms of the
updates are not taken.
"""

from __future__ import annotations

import os

import numpy as np
from _protocol import Clock, Data, Job, main

CORES = os.cpu_count() or 1
if os.environ.get("DURE_BENCHMARK_VARIANT") == "pmap":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={CORES}"

import jax  # noqa: E402

if not hasattr(jax, "tree_map"):  # the released FedJAX uses a name that JAX has since taken away
    jax.tree_map = jax.tree_util.tree_map

import fedjax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from fedjax.algorithms.fed_avg import create_train_for_each_client  # noqa: E402
from fedjax.core import tree_util  # noqa: E402


def logits(model: str, p: list[jax.Array], x: jax.Array) -> jax.Array:
    if model == "small_cnn":
        for i in (0, 2):
            x = jax.lax.conv_general_dilated(
                x, p[i], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x + p[i + 1])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        p = p[4:]
    x = x.reshape(len(x), -1)
    for i in range(0, len(p) - 2, 2):
        x = jax.nn.relu(x @ p[i] + p[i + 1])
    return x @ p[-2] + p[-1]


def model(name: str) -> fedjax.Model:
    def loss(batch: dict[str, jax.Array], outputs: jax.Array) -> jax.Array:
        return -jnp.take_along_axis(jax.nn.log_softmax(outputs), batch["y"][:, None], axis=1)[:, 0]

    return fedjax.Model(
        init=lambda rng: None,
        apply_for_train=lambda params, batch, rng: logits(name, params, batch["x"]),
        apply_for_eval=lambda params, batch: logits(name, params, batch["x"]),
        train_loss=loss,
        eval_metrics={},
    )


def run(job: Job, data: Data, weights: list[np.ndarray], clock: Clock) -> list[np.ndarray]:
    work = job.workload
    if job.variant == "pmap":
        fedjax.set_for_each_client_backend("pmap")
    train = create_train_for_each_client(fedjax.model_grad(model(work.model)), fedjax.optimizers.sgd(work.lr))
    server = fedjax.optimizers.sgd(1.0)
    rng, key = np.random.default_rng(0), jax.random.PRNGKey(0)
    params = [jnp.asarray(w) for w in weights]
    state, round = server.init(params), 0
    starts, sizes = data.offsets[:-1], np.diff(data.offsets)

    def batches(k: int):
        for _ in range(work.epochs):
            order = starts[k] + rng.permutation(sizes[k])
            rows = fedjax.ClientDataset({"x": data.x[order], "y": data.y[order]})
            yield from rows.padded_batch(batch_size=work.batch)

    while clock.more():
        ids = job.cohort(round) % len(sizes)
        keys = jax.random.split(jax.random.fold_in(key, round), len(ids))
        clients = [(i, batches(k), keys[i]) for i, k in enumerate(ids)]
        total = tree_util.tree_zeros_like(params)
        for i, delta in train(params, clients):
            if job.variant == "pmap":  # with a recent JAX, leaves come back with the device's axis in front
                delta = jax.tree_util.tree_map(lambda d, p: d.reshape(p.shape), delta, params)
            total = tree_util.tree_add(total, tree_util.tree_weight(delta, float(sizes[ids[i]])))
        mean = tree_util.tree_inverse_weight(total, float(sizes[ids].sum()))
        state, params = server.apply(mean, state, params)
        jax.block_until_ready(params)
        rows = work.epochs * int(sizes[ids].sum())
        clock.done(1, int(work.epochs * np.sum(-(-sizes[ids] // work.batch))), rows)
        round += 1
    return [np.asarray(p) for p in params]


if __name__ == "__main__":
    main(run, {"fedjax": "0.0.17", "jax": jax.__version__})
