"""Names in a TOML file → the functions that they mean. Plain tables, to be read and extended by hand."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dure.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from dure.aggregation import PreAggregator, Rule
    from dure.algorithms import Algorithm
    from dure.attacks import Attack

#: [data] name → loader.
DATA: Mapping[str, str] = {
    "digits": "dure.data:digits",
    "heart": "dure.data:heart",
    "synthetic": "dure.data:synthetic",
    "fashion_mnist": "dure.data:fashion_mnist",
    "idx": "dure.data:idx",
    "leaf_json": "dure.data:leaf_json",
    "huggingface": "dure.data:huggingface",
    "shakespeare": "dure.data:shakespeare",
}

#: [data.partition] kind → partitioner.
PARTITIONS: Mapping[str, str] = {
    "iid": "dure.data.partition:iid",
    "shards": "dure.data.partition:shards",
    "dirichlet": "dure.data.partition:dirichlet",
    "label_quantity": "dure.data.partition:label_quantity",
    "quantity_skew": "dure.data.partition:quantity_skew",
    "similarity": "dure.data.partition:similarity",
}

#: [model] name → function that returns the model.
MODELS: Mapping[str, str] = {
    "softmax_regression": "dure.models:softmax_regression",
    "logistic": "dure.models:logistic",
    "linear": "dure.models:linear",
    "mlp": "dure.models:mlp",
    "two_nn": "dure.models:two_nn",
    "mcmahan_cnn": "dure.models:mcmahan_cnn",
    "small_cnn": "dure.models:small_cnn",
    "char_lstm": "dure.models:char_lstm",
}

#: Which keys of [optimizer] each optimizer takes.
_ALL = frozenset({"name", "learning_rate", "round_decay"})
OPTIMIZER_KEYS: Mapping[str, frozenset[str]] = {
    "sgd": _ALL | {"momentum", "nesterov", "weight_decay", "clip_norm"},
    "adam": _ALL | {"b1", "b2", "eps"},
    "adamw": _ALL | {"b1", "b2", "eps", "weight_decay"},
    "adagrad": _ALL | {"eps"},
    "rmsprop": _ALL | {"eps", "momentum"},
    "yogi": _ALL | {"b1", "b2", "eps"},
}

#: `proximal` of the ADMM methods: name → regulariser or set.
PROXIMALS: Mapping[str, str] = {name: f"dure.algorithms:{name}" for name in ("L1", "Box", "Ball")}


def algorithms() -> dict[str, "type[Algorithm]"]:
    """[algorithm] name → class, for all methods."""
    from dure.algorithms import ALL

    return {method.__name__: method for method in ALL}


def aggregators() -> dict[str, "type[Rule]"]:
    """[aggregator] name → rule, for all that the library has. A chain has no name: it is written with `before`."""
    from dure.aggregation import Chain, Rule

    return {name: rule for name, rule in _public("aggregation", Rule).items() if rule is not Chain}


def pre_aggregators() -> dict[str, "type[PreAggregator]"]:
    """[aggregator] before → pre-aggregator."""
    from dure.aggregation import PreAggregator

    return _public("aggregation", PreAggregator)


def attacks() -> dict[str, "type[Attack]"]:
    """[attack] name → attack."""
    from dure.attacks import Attack

    return _public("attacks", Attack)


def _public(package: str, base: type[Any]) -> dict[str, Any]:
    """The public classes of a package that are of a kind, without the kind itself."""
    module = import_module(f"dure.{package}")
    there = {name: getattr(module, name) for name in module.__all__}
    return {
        name: x for name, x in there.items() if isinstance(x, type) and issubclass(x, base) and x is not base
    }


def find(kind: str, table: Mapping[str, Any], name: str) -> tuple[str, Any]:
    """The table's own spelling of a name, and what it means; capitals don't matter.

    Raises:
        ConfigError: no such name; the nearest one is named.
    """
    for key, value in table.items():
        if key.lower() == name.lower().replace("-", "_"):
            return key, value
    raise ConfigError(f"{kind} = {name!r}: there's none of this name. {did_you_mean(name, table)}")


def imported(place: str) -> Callable[..., Any]:
    """The function at "module:name"."""
    module, name = place.split(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
