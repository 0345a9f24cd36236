"""`Run`: one training, for people: tables, last values, pictures, the final model."""

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dure.errors import RunError
from dure.run import layout
from dure.run.writer import RunWriter, client_rows

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Run:
    """One training: its configuration, records, final model and pictures.

    Made by `dure.simulate(...)`, or by `Run.open(path)` for one on disk. What was read is kept; open again to
    see what a run in progress has added.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        memory: RunWriter | None = None,
        model: Any = None,
        estimator: Any = None,
    ):
        self.directory = directory
        self._memory = memory
        self._model = model
        self._estimator = estimator

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Run":
        """Open the run in a directory.

        Raises:
            RunError: there's no run in it.
        """
        directory = Path(path)
        if not directory.is_dir():
            raise RunError(f"There is no directory {directory}.")
        if not (directory / layout.CONFIG).exists():
            raise RunError(f"{directory} holds no run: it has no {layout.CONFIG}.")
        return cls(directory)

    # --- small files -------------------------------------------------------------------------------------

    def _small(self, name: str) -> dict[str, Any]:
        if self._memory is not None:
            return dict(self._memory.small.get(name, {}))
        assert self.directory is not None
        if name in (layout.ENVIRONMENT, layout.DATA) and not (self.directory / name).exists():
            return {}
        return dict(layout.read_json(self.directory / name))

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration: all that is needed to repeat the run."""
        return self._small(layout.CONFIG)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions and kind of machine."""
        return self._small(layout.ENVIRONMENT)

    @cached_property
    def data(self) -> dict[str, Any]:
        """What the data look like: sizes, client × class counts, source."""
        return self._small(layout.DATA)

    @property
    def status(self) -> dict[str, Any]:
        """status.json, but "running" reads "interrupted" when no process is writing the run any more."""
        status = self._small(layout.STATUS)
        on_disk = self._memory is None and self.directory is not None
        if status["state"] == "running" and on_disk and not _is_being_written(self.directory):
            status["state"] = "interrupted"
        return status

    @property
    def state(self) -> str:
        """One of "running", "complete", "interrupted", "failed"."""
        return str(self.status["state"])

    @property
    def name(self) -> str:
        """The configuration's name, else the directory's."""
        fallback = self.directory.name if self.directory else "run"
        return str(self.config.get("name") or fallback)

    # --- records -----------------------------------------------------------------------------------------

    def _records(self, name: str) -> list[dict[str, Any]]:
        if self._memory is None:
            assert self.directory is not None
            return layout.read_lines(layout.record_path(self.directory, name))
        entries = self._memory.memory[name]
        if name == "clients":
            return [row for round, rows in entries for row in client_rows(round, rows)]
        return [layout.plain(entry) for entry in entries]

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """One dict per round, as in rounds.jsonl; round 0 is the evaluation before training."""
        return self._records("rounds")

    @cached_property
    def timings(self) -> list[dict[str, Any]]:
        """One dict per round: seconds, compilations, …."""
        return self._records("timings")

    @cached_property
    def history(self) -> "pd.DataFrame":
        """One row per round: the totals, the evaluation values (NaN where not evaluated) and the timings."""
        import pandas as pd

        rounds = pd.DataFrame(self.rounds or [{"round": 0}]).iloc[: len(self.rounds)]
        rounds = rounds.astype({c: float for c in rounds if c != "round" and rounds[c].isna().all()})
        timings = pd.DataFrame(self.timings)
        if timings.empty:
            return rounds
        extra = ["round", *(column for column in timings if column not in rounds)]
        return rounds.merge(timings[extra].drop_duplicates("round", keep="last"), on="round", how="left")

    @cached_property
    def participation(self) -> "pd.DataFrame":
        """One row per (round, client asked): examples, weight, inclusion, steps, loss, norm, status.

        With an aggregation rule also selected, rule_weight, score, distance and attacker: see `suspicion`.
        """
        import pandas as pd

        frames = [pd.DataFrame(record) for record in self._records("participation") if record.get("client")]
        if not frames:
            return pd.DataFrame(columns=["round", "client", "examples", "weight", "status"])
        return pd.concat(frames, ignore_index=True)

    def suspicion(self) -> "pd.DataFrame":
        """What the aggregation rule thought of each client that was asked: one row a client, the most suspect first.

        Columns:
            client, name: who.
            suspicion: in [0, 1], the mean over the rounds in which the rule judged the client's update: 1 where it was
                dropped; else the mean of 1 − min(1, relative weight) and of the rank of the rule's score, as far as the
                rule has them (a rule that chooses but doesn't weigh: 1 where the update was not kept). For a rule that
                has neither, such as a median, the rank of the distance: no judgement of the rule, and an attack that
                hides in the middle looks innocent. NaN if the rule never saw an update of the client, such as the
                server's own (`root`). Rows are sorted by it, equal ones by client.
            rounds: in which the client was asked.
            judged: rounds in which the rule saw its update; without those that were lost, empty or skipped.
            kept: the share of the judged rounds in which the rule kept the update, in [0, 1].
            dropped: how often the update was not finite.
            relative_weight: mean of what the update counted for, over what it counts for in the plain mean with the
                clients' weights (with equal ones: n times its weight); 1 is as in the mean, NaN where the aggregate is
                no combination of updates.
            score_rank: mean rank of the rule's own score among the round's, from 0 to 1 (the most suspect); NaN for a
                rule without scores.
            distance_rank: mean rank of the distance from the aggregate among the round's, from 0 (nearest) to 1.
            last_round: in which the client was asked last.
            attacker: whether it was the attacker's, which a simulation knows.

        A run without an aggregation rule gives a table with these columns and no rows.
        """
        from dure.run.suspicion import suspicion

        return suspicion(self)

    def client_name(self, client: int) -> str:
        """A client's name if the data have names, else its number."""
        return self._names.get(client, str(client))

    @cached_property
    def _names(self) -> dict[int, str]:
        names, shown = self.data.get("client_names"), self.data.get("shown_clients")
        return (
            {} if names is None or shown is None else dict(zip(map(int, shown), map(str, names), strict=True))
        )

    @cached_property
    def clients(self) -> "pd.DataFrame":
        """One row per (evaluated round, client): examples, loss, accuracy, …."""
        import pandas as pd

        return pd.DataFrame(self._records("clients"))

    # --- the model ---------------------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """The final parameters as the model's own pytree.

        Raises:
            RunError: the run was opened from disk, where only named tensors are: use `state_dict()`.
        """
        if self._model is None:
            raise RunError("A run opened from disk has named tensors only: use run.state_dict().")
        return self._model

    def state_dict(self) -> dict[str, np.ndarray]:
        """The final model's tensors by name, in their own dtypes.

        Raises:
            RunError: the run isn't complete, so there's no final model.
        """
        if self._memory is not None and self._memory.tensors is not None:
            return dict(self._memory.tensors)
        path = None if self.directory is None else self.directory / layout.MODEL
        if path is None or not path.exists():
            raise RunError(f"This run ({self.state}) has no final model yet. Resume it first.")
        from safetensors.numpy import load_file

        try:
            return dict(load_file(path))
        except Exception as error:
            raise RunError(f"{path} is damaged: {error}.") from error

    def estimator(self, unfitted: Any = None) -> Any:
        """The fitted scikit-learn estimator of a run that trained one; labels are 0 … C − 1.

        Args:
            unfitted: the estimator with the settings of the run; needed for a run opened from disk, where only named
                tensors are.

        Raises:
            ConfigError: the tensors are not this estimator's.
            RunError: no estimator was trained or given, or there is no final model.
        """
        given = self._estimator if unfitted is None else unfitted
        if given is None:
            raise RunError(
                "No scikit-learn estimator is known here. Of a run opened from disk it needs one with the run's "
                "settings: run.estimator(LogisticRegression(C=1.0)). Other models: run.state_dict()."
            )
        from dure.oracles.estimators.fitted import fitted

        return fitted(given, self.state_dict())

    # --- for people --------------------------------------------------------------------------------------

    @cached_property
    def final(self) -> dict[str, Any]:
        """The last value of every quantity that was recorded (the last that isn't null)."""
        values: dict[str, Any] = {}
        for record in self.rounds:
            values.update({key: value for key, value in record.items() if value is not None})
        return values

    def summary(self) -> str:
        """A few lines: what ran, how far, how well, at what cost."""
        from dure.report.words import summary

        return summary(self)

    def plot(self) -> "Figure":
        """Accuracy (or loss) against uplink bytes and against rounds, as a matplotlib figure."""
        from dure.report.curves import figure

        return figure({self.name: [self]})

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the report, one self-contained HTML file (RUN/report.html by default); returns its path."""
        from dure.report.html import write_report

        return write_report(self, path)

    def __repr__(self) -> str:
        """A line for the prompt."""
        where = "in memory" if self.directory is None else str(self.directory)
        state, round, rounds = (self.status[key] for key in ("state", "round", "rounds"))
        return f"Run({self.name!r}, {state}, round {round} of {rounds}, {where})"

    def _repr_html_(self) -> str:
        from dure.report.html import notebook_card

        return notebook_card(self)


def find_runs(directory: str | os.PathLike[str]) -> list[Run]:
    """All runs below a directory (at most three levels down), in the order of their paths."""
    root = Path(directory)
    found: set[Path] = set()
    for pattern in (".", "*", "*/*", "*/*/*"):
        found.update(path.parent for path in root.glob(f"{pattern}/{layout.CONFIG}"))
    return [Run.open(path) for path in sorted(found) if (path / layout.STATUS).exists()]


def _is_being_written(directory: Path | None) -> bool:
    if directory is None:
        return False
    path = directory / layout.LOCK
    try:
        with open(path, "rb") as file:
            layout.lock(file, shared=True)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
