"""A picture-ready summary of who holds what: sizes and client × class counts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

_SHADES = " ░▒▓█"


@dataclass(frozen=True, eq=False, repr=False)
class Summary:
    """What a partition or a federated data set looks like; `print` it, or give it to rich.

    Attributes:
        title: one line that says what it is.
        sizes: (N,) examples of each client.
        counts: (N, C) examples of each class on each client, or None when there are no classes.
        client_names: N names, or None for numbers.
        class_names: C names, or None for numbers.
    """

    title: str
    sizes: np.ndarray
    counts: np.ndarray | None = None
    client_names: Sequence[str] | None = None
    class_names: Sequence[str] | None = None

    @property
    def shares(self) -> Float64[np.ndarray, "clients classes"] | None:
        """Each client's label distribution (rows sum to 1, or are 0 for an empty client): the picture."""
        if self.counts is None:
            return None
        totals = np.maximum(self.counts.sum(axis=1, keepdims=True), 1)
        shares: Float64[np.ndarray, "clients classes"] = np.divide(self.counts, totals, dtype=np.float64)
        return shares

    @property
    def skew(self) -> float | None:
        """How unlike the clients' labels are, in [0, 1]; 0 when all have the same label distribution.

        The total variation distance from a client's labels to all labels, averaged over examples.
        """
        if self.counts is None or self.shares is None or self.counts.sum() == 0:
            return None
        overall = self.counts.sum(axis=0) / self.counts.sum()
        distance = np.abs(self.shares - overall).sum(axis=1) / 2
        return float(np.average(distance, weights=self.counts.sum(axis=1)))

    def facts(self) -> str:
        """One line: clients, examples, smallest, median and largest client, empty ones, label skew."""
        sizes = self.sizes
        parts = [
            f"{len(sizes)} clients, {int(sizes.sum())} examples",
            f"size {int(sizes.min())} / {np.median(sizes):g} / {int(sizes.max())} (least / median / most)",
        ]
        if empty := int((sizes == 0).sum()):
            parts.append(f"{empty} without examples")
        if self.skew is not None:
            parts.append(f"label skew {self.skew:.2f}")
        return "; ".join(parts)

    def rows(self, limit: int = 30) -> Iterator[tuple[str, str, str]]:
        """(client, examples, shaded classes) of the first `limit` clients; one character per class."""
        shares = self.shares
        for k in range(min(limit, len(self.sizes))):
            name = str(k) if self.client_names is None else self.client_names[k]
            yield name, str(int(self.sizes[k])), "" if shares is None else "".join(map(_shade, shares[k]))

    def __str__(self) -> str:
        rows = list(self.rows())
        wide = max(len(name) for name, _, _ in rows)
        digits = max(len(size) for _, size, _ in rows)
        lines = [f"{name:>{wide}}  {size:>{digits}}  {picture}".rstrip() for name, size, picture in rows]
        return "\n".join([self.title, self.facts(), *lines, *self._more()])

    __repr__ = __str__

    def _more(self) -> list[str]:
        more = len(self.sizes) - 30
        return [f"… and {more} more clients"] if more > 0 else []

    def __rich__(self) -> object:
        from rich.table import Table

        caption = "\n".join([self.facts(), *self._more()])
        table = Table(title=self.title, caption=caption)
        table.add_column("client", justify="right")
        table.add_column("examples", justify="right")
        if self.counts is not None:
            table.add_column("classes, one character each")
        for name, size, picture in self.rows():
            table.add_row(name, size, *([picture] if self.counts is not None else []))
        return table


def _shade(share: float) -> str:
    """A block whose darkness grows with the share; blank only for zero."""
    return _SHADES[0] if share == 0 else _SHADES[min(int(np.ceil(share * 8)), 4)]
