"""A boosted model: predictions, and its file."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from dure.boosting import bagging
from dure.boosting.predictions import Predictions
from dure.boosting.settings import GradientBoosting
from dure.boosting.trees import Tree
from dure.errors import RunError
from dure.run.layout import write_atomic
from dure.statistics.asking import Cost

FORMAT = "dure boosting 1"


@dataclass(frozen=True, eq=False, repr=False)
class Boosted(Predictions):
    """What `fit` returns.

    Attributes:
        settings: the hyper-parameters.
        classes: C, or None for a regression.
        features: F.
        baseline: (outputs,) first raw prediction; one output for a regression or two classes, else C.
        trees: for each boosting round one tree for each output.
        train_loss: (rounds + 1,) mean loss of the training rows before each round and at the end.
        cost: what the clients sent, with the search for bin edges; rounds and bytes.
    """

    settings: GradientBoosting
    classes: int | None
    features: int
    baseline: np.ndarray
    trees: Sequence[Sequence[Tree]]
    train_loss: np.ndarray
    cost: Cost

    def importances(self) -> np.ndarray:
        """(F,) every feature's share of the splits' gains."""
        total = np.zeros(self.features)
        for tree in (tree for trees in self.trees for tree in trees):
            inner = tree.feature >= 0
            np.add.at(total, tree.feature[inner], tree.gain[inner])
        return np.asarray(total / total.sum() if total.sum() > 0 else total)

    def _raw(self, rows: np.ndarray) -> np.ndarray:
        rows = rows.astype(np.float64)
        raw = np.repeat(self.baseline[None], len(rows), 0)
        for trees in self.trees:
            for c, tree in enumerate(trees):
                raw[:, c] += tree.predict(rows)
        return raw

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as JSON; `load` reads back the same numbers.

        Raises:
            RunError: the file can't be written.
        """
        content = {
            "format": FORMAT,
            "settings": asdict(self.settings),
            "classes": self.classes,
            "features": self.features,
            "baseline": self.baseline.tolist(),
            "train_loss": self.train_loss.tolist(),
            "cost": asdict(self.cost),
            "trees": [[_tree_to_json(tree) for tree in trees] for trees in self.trees],
        }
        write_atomic(Path(path), json.dumps(content, allow_nan=False).encode() + b"\n")

    def __repr__(self) -> str:
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        leaves = sum(int((tree.feature < 0).sum()) for trees in self.trees for tree in trees)
        return (
            f"Boosted({kind}, {len(self.trees)} rounds, {leaves} leaves, training loss {self.train_loss[-1]:.4g}; "
            f"{self.cost.rounds} messages, {self.cost.bytes_per_client} bytes per client)"
        )


def load(path: str | os.PathLike[str]) -> Boosted | bagging.Bagged:
    """Read a model that `save` has written.

    Raises:
        RunError: there is no such file, it is damaged, or of another format.
    """
    try:
        content = json.loads(Path(path).read_text())
        if content["format"] == bagging.FORMAT:
            return bagging.read(content)
        if content["format"] != FORMAT:
            raise RunError(f"{path} is of format {content['format']!r}; this dure reads {FORMAT!r}.")
        return Boosted(
            GradientBoosting(**content["settings"]),
            content["classes"],
            content["features"],
            np.array(content["baseline"]),
            [[_tree_from_json(tree) for tree in trees] for trees in content["trees"]],
            np.array(content["train_loss"]),
            Cost(**content["cost"]),
        )
    except OSError as error:
        raise RunError(f"{path} can't be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} holds no boosted model, or is damaged: {error!r}.") from error


def _tree_to_json(tree: Tree) -> dict[str, Any]:
    """Lists by name; an infinite threshold (only missing values go right) is null."""
    lists = {f.name: getattr(tree, f.name).tolist() for f in fields(Tree)}
    lists["threshold"] = [None if np.isinf(t) else t for t in lists["threshold"]]
    return lists


def _tree_from_json(lists: dict[str, Any]) -> Tree:
    kinds = {"threshold": np.float64, "value": np.float64, "gain": np.float64, "missing_left": np.bool_}
    lists["threshold"] = [np.inf if t is None else t for t in lists["threshold"]]
    return Tree(**{name: np.array(values, kinds.get(name, np.int64)) for name, values in lists.items()})
