"""Federated data sets, partitioners and loaders. Loaders download nothing."""

from dure.data.federated import Federated
from dure.data.loaders.digits import digits
from dure.data.loaders.synthetic import synthetic
from dure.data.partition import (
    Partition,
    by_column,
    dirichlet,
    iid,
    label_quantity,
    quantity_skew,
    shards,
    similarity,
)
from dure.data.summary import Summary

__all__ = [
    "Federated",
    "Partition",
    "Summary",
    "by_column",
    "digits",
    "dirichlet",
    "iid",
    "label_quantity",
    "quantity_skew",
    "shards",
    "similarity",
    "synthetic",
]
