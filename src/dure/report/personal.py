"""Personal models beside the global one: mean, 10th percentile and worst client, and the gain over local training."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dure.report import words

if TYPE_CHECKING:
    from dure.run import Run

#: The method that trains every client alone: what personal models must beat.
ALONE = "LocalOnly"
PERSONAL, MEAN = "client_personal_", "_mean"
OF = ("mean", "p10", "worst")


@dataclass(frozen=True)
class Served:
    """How well a study's clients are served, means over its seeds; None where nothing was recorded.

    Attributes:
        shared: the global model's mean, 10th percentile and worst client.
        personal: the same of the clients' own models.
        gain: how much better the personal mean is than that of training alone.
    """

    shared: tuple[float | None, ...]
    personal: tuple[float | None, ...]
    gain: float | None


def metric_of(runs: Iterable["Run"]) -> str | None:
    """The metric by which personal models are judged: accuracy, else another score, else the loss; or None."""
    names = {
        key.removeprefix(PERSONAL).removesuffix(MEAN)
        for run in runs
        for key in run.final
        if key.startswith(PERSONAL) and key.endswith(MEAN)
    }
    order = ["accuracy", *sorted(name for name in names if words.higher_is_better(name)), *sorted(names)]
    return next((name for name in order if name in names), None)


def served(groups: Mapping[str, Sequence["Run"]], metric: str) -> dict[str, Served]:
    """Each study's clients under the global model and under their own."""
    found = {
        label: (_means(runs, f"client_{metric}"), _means(runs, f"{PERSONAL}{metric}"))
        for label, runs in groups.items()
    }
    alone = [
        found[label][1][0]
        for label, runs in groups.items()
        if words.name_of(runs[0].config.get("algorithm")) == ALONE
    ]
    base = alone[0] if len(alone) == 1 else None
    sign = 1 if words.higher_is_better(metric) else -1
    return {
        label: Served(shared, own, None if base is None or own[0] is None else sign * (own[0] - base))
        for label, (shared, own) in found.items()
    }


def _means(runs: Sequence["Run"], start: str) -> tuple[float | None, ...]:
    values = [[run.final.get(f"{start}_{what}") for run in runs] for what in OF]
    return tuple(
        None if any(v is None for v in row) else float(np.mean([float(v or 0) for v in row]))
        for row in values
    )


def head(gain: bool) -> list[str]:
    """Column titles that go with `cells`."""
    columns = [f"{whose} {what}" for whose in ("global", "personal") for what in ("mean", "p10", "worst")]
    return ["study", *columns, *(["gain over local only"] if gain else [])]


def cells(label: str, row: Served, metric: str, gain: bool) -> list[str]:
    """One study's line, in words."""
    texts = [words.metric(metric, value) for value in (*row.shared, *row.personal)]
    if gain:
        texts.append(words.DASH if row.gain is None else _signed(metric, row.gain))
    return [label, *texts]


def _signed(metric: str, value: words.Number) -> str:
    return ("−" if value < 0 else "+") + words.metric(metric, abs(value))
