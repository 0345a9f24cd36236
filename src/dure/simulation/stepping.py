"""The explicit loop, for researchers who want the rounds in their own hands."""

from typing import Any

from dure.algorithms.base import Algorithm
from dure.devices import in_32_bits
from dure.oracles.layout import Variables
from dure.simulation.engine import Engine
from dure.simulation.outside import check
from dure.simulation.results import RoundResult
from dure.simulation.settings import settings


class Simulation:
    """A training that is stepped by hand; takes the keywords of `simulate` that shape a round.

        simulation = Simulation(FedAvg(), task, data, clients_per_round=10, optimizer=0.1)
        for _ in range(100):
            simulation.step()
        model = simulation.params()

    Nothing is recorded or evaluated; `step(wait=True)` says what happened in the round.
    """

    @in_32_bits
    def __init__(
        self,
        algorithm: Algorithm,
        task: Any,
        data: Any,
        *,
        initial: Variables | None = None,
        **keywords: Any,
    ):
        self.engine = Engine(algorithm, task, data, settings(data, **keywords), variables=initial)

    @in_32_bits
    def step(self, wait: bool = False) -> RoundResult | None:
        """Start the next round; with `wait`, return what happened in it."""
        launched = self.engine.launch()
        if wait:
            return self.engine.collect(launched)
        self.engine.plan_ahead()
        return None

    def block(self) -> None:
        """Wait until all rounds that were started are done.

        Raises:
            RunError: a client's work outside JAX raised an error.
        """
        self.engine.block()
        engine = self.engine
        check(engine.task, engine.round, engine.data, engine.settings.client_errors)

    @in_32_bits
    def params(self) -> Any:
        """The parameters now, as the model's own pytree."""
        return self.engine.params()
