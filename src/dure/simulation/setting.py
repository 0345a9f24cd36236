"""A method that a setting can't serve is refused when the two are put together (law 7 of the design)."""

from typing import Any

from dure.aggregation import Mean
from dure.algorithms.base import Algorithm, has_survey
from dure.errors import ConfigError
from dure.population.samplers import Weighted
from dure.simulation.settings import Settings


def check_setting(algorithm: Algorithm, settings: Settings, data: Any, client_state: bool) -> None:
    """Refuse what would break the method's guarantee.

    Raises:
        ConfigError: saying what the method needs, what the setting gives, and what to use instead.
    """
    name, needs = type(algorithm).__name__, algorithm.needs
    if needs.everyone and settings.sampler.expected_size(data) < data.clients:
        raise ConfigError(
            f"{name} is right only when every client takes part in every round, and the sampler is "
            f"{settings.sampler.describe()}. Leave fraction and clients_per_round out, or choose a method "
            "that samples (`dure algorithms` lists what each one needs)."
        )
    if needs.everyone and (callable(settings.lost_uploads) or settings.lost_uploads > 0):
        raise ConfigError(
            f"{name} is right only when every client's update arrives in every round, and lost_uploads is "
            "given. Leave it out, or choose a method that samples (`dure algorithms` lists what each one needs)."
        )
    if client_state and not getattr(settings.sampler, "returning", True):
        raise ConfigError(
            f"{name} keeps state with each client between rounds, and with the sampler "
            f"{settings.sampler.describe()} a client comes once: its state would never be used. Use a method "
            "without client state (FedAvg, FedProx, FedAdam, MimeLite), or a population that comes again."
        )
    if needs.mean_of_states and isinstance(settings.sampler, Weighted):
        raise ConfigError(
            f"{name} keeps a mean over all clients' states on the server, which needs Σ p_k over those who "
            "took part; sampling by weight hides it. Use clients_per_round= or fraction= (uniform sampling) "
            "with weighting='examples'."
        )
    if settings.aggregator is not None and not isinstance(settings.aggregator, Mean):
        _check_rule(algorithm, type(settings.aggregator).__name__)


def _check_rule(algorithm: Algorithm, rule: str) -> None:
    """A rule that leaves updates out breaks methods that count on every update.

    Raises:
        ConfigError: what the method counts on, and which methods go with the rule.
    """
    name, needs = type(algorithm).__name__, algorithm.needs
    others = "Use FedAvg, FedProx, FedAvgM, FedAdam or WorkerMomentum with it, or aggregator=dure.aggregation.Mean()."
    if has_survey(algorithm):
        raise ConfigError(
            f"{name} asks the clients first and takes the mean of what they say, which {rule} doesn't "
            f"guard. {others}"
        )
    if needs.everyone or needs.mean_of_states:
        raise ConfigError(
            f"{name} keeps a mean over the clients' states on the server, which is wrong as soon as {rule} leaves an "
            f"update out. {others}"
        )
    if type(algorithm).receive is not Algorithm.receive:
        raise ConfigError(
            f"What {name} averages is made of the clients' updates on the server (by group, or as products), and "
            f"{rule} is a statement about the updates themselves. {others}"
        )
