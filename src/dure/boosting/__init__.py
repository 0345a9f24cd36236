"""Federated gradient boosting on histograms: exactly the trees that the pooled rows would give."""

from dure.boosting.bagging import Bagged, XGBoostBagging
from dure.boosting.model import Boosted, load
from dure.boosting.settings import GradientBoosting
from dure.boosting.training import fit
from dure.boosting.trees import Tree

__all__ = ["Bagged", "Boosted", "GradientBoosting", "Tree", "XGBoostBagging", "fit", "load"]
