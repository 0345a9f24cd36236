"""Federated training in simulation: the compiled engine and the loop around it."""

from dure.simulation.simulate import simulate
from dure.simulation.stepping import Simulation

__all__ = ["Simulation", "simulate"]
