"""[optimizer] (and FedOpt's [algorithm.optimizer]) → the optimizer, and back."""

from typing import Any

from dure.config import tables
from dure.config.study import Optimizer, without_none


def optimizer(section: Optimizer) -> Any:
    """The optimizer that a section means."""
    import optax

    from dure.oracles.optimizer import Optimizer as Local
    from dure.oracles.optimizer import sgd

    given = without_none(section.model_dump(exclude={"name", "round_decay"}))
    if section.name == "sgd":
        return sgd(**given, round_decay=section.round_decay)
    factory = getattr(optax, section.name)
    given = {key: value for key, value in given.items() if key in tables.OPTIMIZER_KEYS[section.name]}
    return Local(factory, given, section.round_decay)


def as_table(local: Any) -> dict[str, Any]:
    """A method's own default optimizer as the table that makes it."""
    return {"name": local.factory.__name__, **local.arguments}
