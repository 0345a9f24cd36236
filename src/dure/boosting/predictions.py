"""What every boosted model says about rows, from its raw predictions."""

from typing import Any

import numpy as np

from dure.boosting.losses import probabilities
from dure.errors import ConfigError


class Predictions:
    """Predictions for rows (B, F); NaN is a missing value.

    Attributes:
        classes: C, or None for a regression.
        features: F.
    """

    classes: int | None
    features: int

    def decision_function(self, x: Any) -> np.ndarray:
        """Raw predictions for rows (B, F): (B,) for a regression or two classes (log-odds), else (B, C).

        Raises:
            ConfigError: another number of features.
        """
        raw = self._checked(x)
        return raw[:, 0] if raw.shape[1] == 1 else raw

    def predict_proba(self, x: Any) -> np.ndarray:
        """(B, C) probabilities of the classes for rows (B, F).

        Raises:
            ConfigError: a regression, or another number of features.
        """
        if self.classes is None:
            raise ConfigError("A regression has no probabilities: use predict.")
        return probabilities(self._checked(x))

    def predict(self, x: Any) -> np.ndarray:
        """(B,) labels, or values of a regression, for rows (B, F).

        Raises:
            ConfigError: another number of features.
        """
        return self._checked(x)[:, 0] if self.classes is None else np.asarray(self.predict_proba(x).argmax(1))

    def _checked(self, x: Any) -> np.ndarray:
        rows = np.asarray(x)
        if rows.ndim != 2 or rows.shape[1] != self.features:
            raise ConfigError(f"Rows have shape {rows.shape}; this model takes (B, {self.features}).")
        return self._raw(rows)

    def _raw(self, rows: np.ndarray) -> np.ndarray:
        """(B, outputs) the sums of the trees."""
        raise NotImplementedError
