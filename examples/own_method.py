"""A method of your own: SCAFFOLD in one page, with client state that commits when the server used the update."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp

import dure


class Server(NamedTuple):
    w: jnp.ndarray
    c: jnp.ndarray


class Update(NamedTuple):
    delta: jnp.ndarray
    control: jnp.ndarray


@dataclass(frozen=True)
class Scaffold(dure.Algorithm):
    """Option II of Karimireddy et al., ICML 2020: steps along g + c − c_k."""

    server_lr: float = 1.0

    def init(self, w):
        return Server(w, jnp.zeros_like(w))

    def init_client(self, w):
        return jnp.zeros_like(w)

    def local(self, server, c_k, oracle):
        y = oracle.solve(server.w, linear=server.c - c_k)
        c_new = c_k - server.c + (server.w - y.w) / y.gain
        return Update(y.w - server.w, c_new - c_k), c_new

    def apply(self, server, mean, round):
        w = server.w + self.server_lr * mean.delta
        return Server(w, server.c + round.participation * mean.control)


data = dure.data.digits()
task = dure.classification(dure.models.softmax_regression(64, 10))
for method in (dure.FedAvg(), Scaffold()):
    run = dure.simulate(
        method, task, data, rounds=20, clients_per_round=5, epochs=2, optimizer=0.1, weighting="uniform"
    )
    last = run.final
    print(
        f"{type(method).__name__}: accuracy {last['test_accuracy']:.3f}, uplink {last['uplink_bytes']} bytes a round"
    )
