"""Federated training in simulation: the compiled engine and the loop around it."""

from dure.simulation.stepping import Simulation
from dure.simulation.training import simulate

__all__ = ["Simulation", "simulate"]
