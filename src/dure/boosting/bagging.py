"""XGBoost bagging: every client boosts the common model on its own rows, and the model takes all of their trees.

So the tree-based federated XGBoost of Flower and NVIDIA FLARE works. It needs far fewer messages than histograms and
does not give the pooled trees: clients with other distributions pull their trees to their own rows.
"""

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dure import keys
from dure.boosting.losses import LogLoss
from dure.boosting.predictions import Predictions
from dure.boosting.settings import LOSSES
from dure.channel import wire
from dure.errors import ConfigError
from dure.run.layout import write_atomic
from dure.statistics.asking import Cost, Survey, whole_number

FORMAT = "dure xgboost bagging 1"
_OURS = ("objective", "num_class", "base_score", "num_parallel_tree", "nthread", "n_jobs", "random_state")


@dataclass(frozen=True)
class XGBoostBagging:
    """Bagging of XGBoost's trees; needs the package `xgboost` (or `xgboost-cpu`).

    Attributes:
        rounds: at least 1.
        local_trees: boosting rounds of every client in a round, at least 1; with C > 2 classes each makes C trees.
        combine: "mean": client k's trees count n_k/n, so that a round is one step of the mean (FLARE's scaled learning
            rate); "sum": they count fully (Flower), for which learning_rate must be small.
        loss: as in `GradientBoosting`.
        params: XGBoost's own parameters, such as {"max_depth": 3, "learning_rate": 0.3}. What it draws ("subsample",
            "colsample_bytree", …) follows from params["seed"] (0), the round and the client.
    """

    rounds: int = 10
    local_trees: int = 1
    combine: str = "mean"
    loss: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole_number("rounds", self.rounds, 1)
        whole_number("local_trees", self.local_trees, 1)
        if self.combine not in ("mean", "sum"):
            raise ConfigError(f"combine={self.combine!r} is not known: give 'mean' or 'sum'.")
        if self.loss is not None and self.loss not in LOSSES:
            raise ConfigError(
                f"loss={self.loss!r} is not known: give {' or '.join(map(repr, LOSSES))}, or None."
            )
        if not isinstance(self.params, Mapping):
            raise ConfigError(
                f"params={self.params!r} is not allowed: give XGBoost's parameters by name, such as "
                '{"max_depth": 3}, or {}.'
            )
        for name in _OURS:
            if name in self.params:
                why = "is called 'seed' here" if name == "random_state" else "follows from the data"
                raise ConfigError(f"params has {name!r}, which {why}: leave it out.")


@dataclass(frozen=True, eq=False, repr=False)
class Bagged(Predictions):
    """What bagging gives.

    Attributes:
        settings: as they were given.
        classes: C, or None for a regression.
        features: F.
        baseline: (outputs,) first raw prediction.
        members: weight and XGBoost booster of every client and round.
        cost: rounds and bytes; a client's message is its new trees in XGBoost's binary format.
    """

    settings: XGBoostBagging
    classes: int | None
    features: int
    baseline: np.ndarray
    members: Sequence[tuple[float, Any]]
    cost: Cost

    def tree_count(self) -> int:
        """All trees of the model."""
        return sum(len(booster.get_dump()) for _, booster in self.members)

    def _raw(self, rows: np.ndarray) -> np.ndarray:
        rows = rows.astype(np.float32)
        return _raw(self.baseline, self.members, rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as JSON, with every booster in XGBoost's binary format; `load` reads it.

        Raises:
            RunError: the file can't be written.
        """
        content = {
            "format": FORMAT,
            "settings": asdict(self.settings),
            "classes": self.classes,
            "features": self.features,
            "baseline": self.baseline.tolist(),
            "cost": asdict(self.cost),
            "members": [[weight, base64.b64encode(_bytes(b)).decode()] for weight, b in self.members],
        }
        write_atomic(Path(path), json.dumps(content, allow_nan=False).encode() + b"\n")

    def __repr__(self) -> str:
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        return (
            f"Bagged({kind}, {self.settings.rounds} rounds, {self.tree_count()} trees; {self.cost.rounds} messages, "
            f"{self.cost.bytes_per_client} bytes per client)"
        )


def read(content: Mapping[str, Any]) -> Bagged:
    """The model in a file's content."""
    members = []
    for weight, text in content["members"]:
        booster = _xgboost().Booster()
        booster.load_model(bytearray(base64.b64decode(text)))
        members.append((float(weight), booster))
    return Bagged(
        XGBoostBagging(**content["settings"]),
        content["classes"],
        content["features"],
        np.array(content["baseline"]),
        members,
        Cost(**content["cost"]),
    )


def bag(settings: XGBoostBagging, data: Any, names: tuple[str, str], survey: Survey, loss: Any) -> Bagged:
    """The rounds of bagging; see `dure.boosting.fit`.

    Args:
        settings: hyper-parameters.
        data: the federated data set.
        names: columns of features and targets.
        survey: of these, for the baseline; already counted.
        loss: (loss, baseline, …) as for histograms.
    """
    xgboost = _xgboost()
    kind, baseline = loss
    log = isinstance(kind, LogLoss)
    seed = settings.params.get("seed", 0)
    params = {**settings.params, "nthread": 1, "base_score": 0.5 if log and kind.outputs == 1 else 0.0}
    if log and kind.outputs > 1:
        params |= {"objective": "multi:softprob", "num_class": kind.classes}
    else:
        params["objective"] = "binary:logistic" if log else "reg:squarederror"
    rows = {k: [data.client(k)[name] for name in names] for k in survey.clients}
    raw = {k: np.repeat(baseline[None], len(x), 0) for k, (x, _) in rows.items()}
    sent = dict.fromkeys(rows, 0)
    members: list[tuple[float, Any]] = []
    for r in range(settings.rounds):
        new = []
        for k, (x, y) in rows.items():
            matrix = xgboost.DMatrix(x, label=y)
            matrix.set_base_margin(raw[k] if raw[k].shape[1] > 1 else raw[k][:, 0])
            params["seed"] = int(keys.generator(seed, "xgboost", r, k).integers(2**31))
            try:
                booster = xgboost.train(params, matrix, settings.local_trees)
            except xgboost.core.XGBoostError as error:
                said = next((line for line in str(error).splitlines() if line.strip()), "no reason")
                raise ConfigError(
                    f"XGBoost refused to train in round {r} at client {data.client_name(k)}: {said.rstrip('.')}. "
                    f"It was given params={dict(settings.params)}."
                ) from error
            sent[k] += wire.size({"trees": np.frombuffer(_bytes(booster), np.uint8)})
            new.append((len(x) / survey.rows if settings.combine == "mean" else 1.0, booster))
        members += new
        for k, (x, _) in rows.items():
            raw[k] = _raw(raw[k], new, x)
    asked = survey.cost
    cost = Cost(
        asked.rounds + settings.rounds, asked.bytes_per_client + max(sent.values()), len(survey.clients)
    )
    classes = kind.classes if log else None
    return Bagged(settings, classes, data.columns[names[0]].shape[1], baseline, members, cost)


def _raw(baseline: np.ndarray, members: Sequence[tuple[float, Any]], x: np.ndarray) -> np.ndarray:
    """(B, outputs) the baseline ((outputs,) or (B, outputs)) and what the boosters add to it."""
    matrix = _xgboost().DMatrix(x)
    raw = np.array(np.broadcast_to(baseline, (len(x), baseline.shape[-1])), np.float64)
    for weight, booster in members:
        raw += weight * booster.predict(matrix, output_margin=True).reshape(raw.shape)
    return raw


def _bytes(booster: Any) -> bytes:
    return bytes(booster.save_raw("ubj"))


def _xgboost() -> Any:
    try:
        import xgboost  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise ConfigError("Bagging needs XGBoost: pip install xgboost (or xgboost-cpu).") from error
    return xgboost
