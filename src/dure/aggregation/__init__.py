"""Rows (m, d) and weights to one vector: the mean, and rules that hostile clients can't break."""

from dure.aggregation.average import Mean
from dure.aggregation.bucketing import Bucketing
from dure.aggregation.bulyan import Bulyan
from dure.aggregation.caf import CAF
from dure.aggregation.centered_clipping import CenteredClipping
from dure.aggregation.chain import Chain, chain
from dure.aggregation.checking import capped
from dure.aggregation.clipped_clustering import ClippedClustering
from dure.aggregation.clipping import ARC, Clipping
from dure.aggregation.dnc import DnC
from dure.aggregation.flame import FLAME
from dure.aggregation.fldetector import FLDetector
from dure.aggregation.fltrust import FLTrust
from dure.aggregation.foolsgold import FoolsGold
from dure.aggregation.geometric_median import RFA, GeometricMedian
from dure.aggregation.krum import Krum, MultiKrum
from dure.aggregation.mda import MDA
from dure.aggregation.meamed import MeaMed
from dure.aggregation.median import Median
from dure.aggregation.nearest import CGE, MoNNA
from dure.aggregation.nnm import NNM
from dure.aggregation.norm_clipping import NormClipping
from dure.aggregation.orelse import OrElse
from dure.aggregation.preaggregator import Mixed, PreAggregator
from dure.aggregation.rlr import RLR
from dure.aggregation.rows import Blocks
from dure.aggregation.rule import Aggregate, Rule
from dure.aggregation.signguard import SignGuard
from dure.aggregation.smea import SMEA
from dure.aggregation.trimmed_mean import TrimmedMean

__all__ = [
    "ARC",
    "CAF",
    "CGE",
    "FLAME",
    "MDA",
    "NNM",
    "RFA",
    "RLR",
    "SMEA",
    "Aggregate",
    "Blocks",
    "Bucketing",
    "Bulyan",
    "CenteredClipping",
    "Chain",
    "ClippedClustering",
    "Clipping",
    "DnC",
    "FLDetector",
    "FLTrust",
    "FoolsGold",
    "GeometricMedian",
    "Krum",
    "MeaMed",
    "Mean",
    "Median",
    "Mixed",
    "MoNNA",
    "MultiKrum",
    "NormClipping",
    "OrElse",
    "PreAggregator",
    "Rule",
    "SignGuard",
    "TrimmedMean",
    "capped",
    "chain",
]
