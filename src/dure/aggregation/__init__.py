"""Rows (m, d) and weights to one vector: the mean, and rules that hostile clients can't break."""

from dure.aggregation.average import Mean
from dure.aggregation.bulyan import Bulyan
from dure.aggregation.caf import CAF
from dure.aggregation.centered_clipping import CenteredClipping
from dure.aggregation.checking import capped
from dure.aggregation.dnc import DnC
from dure.aggregation.geometric_median import RFA, GeometricMedian
from dure.aggregation.krum import Krum, MultiKrum
from dure.aggregation.mda import MDA
from dure.aggregation.meamed import MeaMed
from dure.aggregation.median import Median
from dure.aggregation.nearest import CGE, MoNNA
from dure.aggregation.rows import Blocks
from dure.aggregation.rule import Aggregate, Rule
from dure.aggregation.smea import SMEA
from dure.aggregation.trimmed_mean import TrimmedMean

__all__ = [
    "CAF",
    "CGE",
    "MDA",
    "RFA",
    "SMEA",
    "Aggregate",
    "Blocks",
    "Bulyan",
    "CenteredClipping",
    "DnC",
    "GeometricMedian",
    "Krum",
    "MeaMed",
    "Mean",
    "Median",
    "MoNNA",
    "MultiKrum",
    "Rule",
    "TrimmedMean",
    "capped",
]
