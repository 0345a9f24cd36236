"""Rows (m, d) and weights to one vector: the mean, and rules that hostile clients can't break."""

from dure.aggregation.average import Mean
from dure.aggregation.checking import capped
from dure.aggregation.krum import Krum, MultiKrum
from dure.aggregation.meamed import MeaMed
from dure.aggregation.median import Median
from dure.aggregation.rows import Blocks
from dure.aggregation.rule import Aggregate, Rule
from dure.aggregation.trimmed_mean import TrimmedMean

__all__ = [
    "Aggregate",
    "Blocks",
    "Krum",
    "MeaMed",
    "Mean",
    "Median",
    "MultiKrum",
    "Rule",
    "TrimmedMean",
    "capped",
]
