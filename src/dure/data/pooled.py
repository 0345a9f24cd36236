"""Data that came without clients: arrays to be dealt out by a partition."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dure.data.federated import Federated
from dure.data.partition import Partition


@dataclass(frozen=True, eq=False, repr=False)
class Pooled(Mapping[str, Mapping[str, np.ndarray]]):
    """Training and test arrays without clients; reads like {"train": {"x", "y"}, "test": {"x", "y"}}.

    Attributes:
        train: training columns.
        test: test columns, or None (then "test" is no key).
        classes: number of labels, or None.
        class_names: their names, or None.
        name: a word for reports.
        source: where the data come from.
        licence: licence and attribution.
        citation: how to cite them.
    """

    train: Mapping[str, np.ndarray]
    test: Mapping[str, np.ndarray] | None = None
    classes: int | None = None
    class_names: Sequence[str] | None = None
    name: str = "data"
    source: str = ""
    licence: str = ""
    citation: str = ""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __getitem__(self, part: str) -> Mapping[str, np.ndarray]:
        tables = {"train": self.train, "test": self.test}
        found = tables[part]
        if found is None:
            raise KeyError(part)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(["train"] if self.test is None else ["train", "test"])

    def __len__(self) -> int:
        return 1 if self.test is None else 2

    @property
    def labels(self) -> np.ndarray:
        """Training labels, (n,): what a partitioner takes."""
        return self.train["y"]

    def partition(self, partition: Partition) -> Federated:
        """Deals the training rows out; the test rows become the central test set.

        Raises:
            DataError: the partition is of another number of examples, or as `Federated`.
        """
        return Federated.from_partition(
            self.train, partition, test=self.test, classes=self.classes, class_names=self.class_names,
            name=self.name, source=self.source, licence=self.licence, citation=self.citation,
        )  # fmt: skip

    def __repr__(self) -> str:
        columns = ", ".join(f"{n}: {v.dtype}{list(v.shape[1:]) or ''}" for n, v in self.train.items())
        sizes = " + ".join(str(len(next(iter(self[part].values())))) for part in self)
        return f"Pooled({self.name!r}, {sizes} examples, {columns}; no clients yet: use partition())"
