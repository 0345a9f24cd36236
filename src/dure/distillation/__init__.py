"""Federated learning by predictions instead of parameters, with clients of different architectures.

Clients and server share a public set of inputs without labels. What is averaged is what the models say about
it, so that the models may differ: a client's own model is trained on its own data and towards the consensus.
"""

from dure.distillation.base import Clients, Method
from dure.distillation.dsfl import DSFL
from dure.distillation.feddf import FedDF
from dure.distillation.fedmd import FedMD
from dure.distillation.simulate import simulate

__all__ = ["DSFL", "Clients", "FedDF", "FedMD", "Method", "simulate"]
