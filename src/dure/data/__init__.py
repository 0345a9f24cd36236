"""Federated data sets, partitioners and loaders. Loaders download nothing."""

from dure.data.catalogue import CATALOGUE, Entry
from dure.data.federated import Federated
from dure.data.loaders.counts import counts
from dure.data.loaders.digits import digits
from dure.data.loaders.heart import heart
from dure.data.loaders.huggingface import huggingface
from dure.data.loaders.idx import fashion_mnist, idx, read_idx
from dure.data.loaders.leaf import leaf_json
from dure.data.loaders.shakespeare import shakespeare
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
from dure.data.pooled import Pooled
from dure.data.summary import Summary

__all__ = [
    "CATALOGUE",
    "Entry",
    "Federated",
    "Partition",
    "Pooled",
    "Summary",
    "by_column",
    "counts",
    "digits",
    "dirichlet",
    "fashion_mnist",
    "heart",
    "huggingface",
    "idx",
    "iid",
    "label_quantity",
    "leaf_json",
    "quantity_skew",
    "read_idx",
    "shakespeare",
    "shards",
    "similarity",
    "synthetic",
]
