"""What hostile clients do: poisoned updates, poisoned data, backdoors, and how well it worked."""

from dure.attacks.adaptive import A3FL, optimized_trigger
from dure.attacks.alie import ALIE, RoP, alie_zmax
from dure.attacks.backdoor import PGD, Backdoor, ModelReplacement, Neurotoxin
from dure.attacks.base import Attack, Scene, Sent, View
from dure.attacks.fang import FangKrum, FangTrimmedMean
from dure.attacks.measure import attack_success_rate, honest_distance
from dure.attacks.mimic import Mimic
from dure.attacks.minmax import MinMax, MinSum
from dure.attacks.optimized import OptimizedALIE, OptimizedIPM
from dure.attacks.poisoning import IPM, DataSizeLie, Gaussian, Huge, LabelFlip, NotFinite, SignFlip, Zero
from dure.attacks.triggers import DBA, AdaptiveTrigger, EdgeCase, PixelTrigger

__all__ = [
    "A3FL",
    "ALIE",
    "DBA",
    "IPM",
    "PGD",
    "AdaptiveTrigger",
    "Attack",
    "Backdoor",
    "DataSizeLie",
    "EdgeCase",
    "FangKrum",
    "FangTrimmedMean",
    "Gaussian",
    "Huge",
    "LabelFlip",
    "Mimic",
    "MinMax",
    "MinSum",
    "ModelReplacement",
    "Neurotoxin",
    "NotFinite",
    "OptimizedALIE",
    "OptimizedIPM",
    "PixelTrigger",
    "RoP",
    "Scene",
    "Sent",
    "SignFlip",
    "View",
    "Zero",
    "alie_zmax",
    "attack_success_rate",
    "honest_distance",
    "optimized_trigger",
]
