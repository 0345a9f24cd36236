"""The hyper-parameters of gradient boosting."""

from dataclasses import dataclass

from dure.errors import ConfigError

LOSSES = ("squared_error", "log_loss")


@dataclass(frozen=True)
class GradientBoosting:
    """Gradient boosting of regression trees on histograms, grown level by level.

    J. H. Friedman: Greedy Function Approximation: A Gradient Boosting Machine, Annals of Statistics 2001; with second
    derivatives as T. Chen, C. Guestrin: XGBoost: A Scalable Tree Boosting System, KDD 2016, equations 5 to 7, whose
    gain is half of this one: G_L²/(H_L + λ) + G_R²/(H_R + λ) − G²/(H + λ).

    Attributes:
        trees: boosting rounds, at least 1; with C > 2 classes each makes C trees.
        learning_rate: factor on the values of leaves, in (0, 1].
        depth: most splits between the root and a leaf, at least 1.
        max_bins: most bins of a feature, 2 to 65 535, beside the one for missing values.
        l2: λ ≥ 0.
        minimum_examples: fewest rows of a leaf, at least 1.
        minimum_hessian: least sum of second derivatives of a leaf, at least 0.
        minimum_gain: a split must gain more, at least 0.
        loss: "squared_error" (½(prediction − y)²), "log_loss" (logistic with two classes, softmax with more), or None:
            log_loss where the target is a column of labels.
    """

    trees: int = 100
    learning_rate: float = 0.1
    depth: int = 4
    max_bins: int = 64
    l2: float = 1.0
    minimum_examples: int = 20
    minimum_hessian: float = 1e-3
    minimum_gain: float = 0.0
    loss: str | None = None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("trees", 1, None),
            ("depth", 1, 30),
            ("max_bins", 2, 65_535),
            ("minimum_examples", 1, None),
        ):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int)
                or value < least
                or value > (most or value)
            ):
                upto = "" if most is None else f" and at most {most}"
                raise ConfigError(
                    f"{name}={value!r} is not allowed: it must be an integer of at least {least}{upto}."
                )
        for name in ("l2", "minimum_hessian", "minimum_gain"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}={getattr(self, name)!r} is not allowed: it must be at least 0.")
        if not 0 < self.learning_rate <= 1:
            raise ConfigError(f"learning_rate={self.learning_rate!r} is not allowed: it must be in (0, 1].")
        if self.loss is not None and self.loss not in LOSSES:
            raise ConfigError(
                f"loss={self.loss!r} is not known: give {' or '.join(map(repr, LOSSES))}, or None."
            )
