"""From the sections of a study to the keywords of `simulate`."""

import math
from collections.abc import Mapping
from typing import Any

from dure.config.optimizers import optimizer
from dure.config.study import Clients, Optimizer, Study
from dure.errors import ConfigError

WORK = ("epochs", "steps", "batch_size")


def keywords(plan: Study) -> dict[str, Any]:
    """The keywords that a study means."""
    clients = plan.clients
    return {
        "rounds": plan.rounds,
        "seed": plan.seed,
        "epochs": clients.epochs,
        "steps": clients.steps,
        "batch_size": math.inf if clients.batch_size == "all" else clients.batch_size,
        "optimizer": optimizer(plan.optimizer),
        "weighting": clients.weighting,
        "estimator": clients.estimator,
        "lost_uploads": clients.lost_uploads,
        "evaluate_every": plan.evaluation.every or None,
        "evaluate_clients_every": plan.evaluation.clients_every,
        **plan.engine.model_dump(exclude_none=True),
        **_sampling(clients),
    }


def _sampling(clients: Clients) -> dict[str, Any]:
    from dure.population.samplers import Cyclic, Once, Poisson, Weighted

    if clients.sampler == "poisson":
        assert clients.fraction is not None
        return {"sampler": Poisson(clients.fraction)}
    if clients.sampler == "weighted":
        assert clients.per_round is not None
        return {"sampler": Weighted(clients.per_round)}
    if clients.sampler == "cyclic":
        order = None if clients.order is None else tuple(clients.order)
        return {"sampler": Cyclic(clients.per_round or 1, order)}
    if clients.sampler == "once":
        assert clients.per_round is not None
        return {"sampler": Once(clients.per_round)}
    if clients.per_round is not None:
        return {"clients_per_round": clients.per_round}
    return {"fraction": clients.fraction} if clients.fraction is not None else {}


def check_population(plan: Study, clients: int, source: str) -> None:
    """Refuse what the number of clients makes impossible, before the first round and not in the middle.

    Raises:
        ConfigError: saying what is too large.
    """
    chosen = plan.clients
    if chosen.sampler in (None, "uniform", "once") and (chosen.per_round or 0) > clients:
        raise ConfigError(
            f"{source}: clients.per_round = {chosen.per_round} is more than the {clients} clients of the data."
        )
    if plan.attack is not None:
        many = plan.attack.attackers
        if isinstance(many, int) and many > clients:
            raise ConfigError(
                f"{source}: attack.attackers = {many} is more than the {clients} clients of the data."
            )
        beyond = [client for client in many if client >= clients] if isinstance(many, list) else []
        if beyond:
            raise ConfigError(
                f"{source}: attack.attackers names client {beyond[0]}, and the data have {clients} clients, "
                f"numbered 0 to {clients - 1}."
            )
    if chosen.sampler == "once":
        assert chosen.per_round is not None
        cohorts = clients // chosen.per_round
        if plan.rounds > cohorts:
            raise ConfigError(
                f"{source}: clients.sampler = 'once' asks each client at most once, and {clients} clients make "
                f"{cohorts} cohorts of {chosen.per_round}: rounds = {plan.rounds} is too many."
            )
    if chosen.sampler == "cyclic":
        length = len(chosen.order or range(clients))
        wrong = [client for client in chosen.order or () if client >= clients]
        if wrong:
            raise ConfigError(
                f"{source}: clients.order names client {wrong[0]}, and the data have {clients} clients, "
                f"numbered 0 to {clients - 1}."
            )
        if (chosen.per_round or 1) > length:
            raise ConfigError(
                f"{source}: clients.per_round = {chosen.per_round}: the cycle has {length} clients only."
            )


def without_unused(
    plan: Study, config: dict[str, Any], method: str, asks: frozenset[str]
) -> tuple[Study, list[str]]:
    """The study without what the method doesn't use (also in its record), and a note that says so.

    A method that never asks for the local optimizer has step sizes of its own; one that doesn't walk over
    minibatches either, such as FedSGD, has no local work at all.
    """
    if "solve" in asks:
        return plan, []
    given = [f"optimizer.{key}" for key in sorted(plan.optimizer.model_fields_set)]
    config.pop("optimizer", None)
    plan = plan.model_copy(update={"optimizer": Optimizer()})
    if "walk" not in asks:
        given += [f"clients.{key}" for key in WORK if key in plan.clients.model_fields_set]
        for key in WORK:
            config["clients"].pop(key, None)
        plan = plan.model_copy(update={"clients": plan.clients.model_copy(update=_default_work())})
    own = f"its step sizes are its own, see `dure algorithms {method}`"
    return plan, [f"{method} doesn't use {', '.join(given)}; {own}."] if given else []


def _default_work() -> Mapping[str, Any]:
    return {key: Clients.model_fields[key].default for key in WORK}
