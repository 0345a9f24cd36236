"""A run's records in TensorBoard, MLflow or Weights & Biases: thin writers, each an optional package.

Live, a tracker is a run's `on_round`; afterwards, or for a run from disk, `write` does it all at once:

    with dure.trackers.TensorBoard("logs") as tracker:
        run = dure.simulate(…, on_round=tracker)
        tracker.finish(run)

    dure.trackers.MLflow("my experiment").write(dure.Run.open("runs/digits"))

What is written: every number of a round's record, at step = round; the configuration, flattened
("clients.sampler.kind"); and where the tracker keeps files the run's directory.
"""

import json
import math
import os
import time
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any

from dure.errors import ConfigError
from dure.run import Run


class Tracker:
    """What all trackers share; see the module."""

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Write one round's numbers; the `on_round` of a run."""
        numbers = {
            name: float(value)
            for name, value in record.items()
            if not isinstance(value, bool) and isinstance(value, Real) and name != "round"
        }
        self.numbers(int(record["round"]), {n: v for n, v in numbers.items() if math.isfinite(v)})

    def finish(self, run: Run) -> None:
        """Write the configuration and the files of a run whose rounds are written."""
        self.settings(flattened(run.config))
        if run.directory is not None:
            self.files(run.directory)

    def write(self, run: Run) -> None:
        """Write a whole run."""
        for record in run.rounds:
            self(record)
        self.finish(run)
        self.close()

    def numbers(self, round: int, values: Mapping[str, float]) -> None:
        """Name → value after a round."""
        raise NotImplementedError

    def settings(self, values: Mapping[str, str]) -> None:
        """The configuration, dotted name → text."""
        raise NotImplementedError

    def files(self, directory: Path) -> None:
        """The run's directory; trackers that keep no files leave it."""

    def close(self) -> None:
        """Write what is left."""

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.close()


class TensorBoard(Tracker):
    """An event file that `tensorboard --logdir DIRECTORY` shows. Needs the package tensorboard.

    Args:
        directory: where the event file goes; it is made.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise _missing("TensorBoard", "tensorboard") from None
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(os.fspath(directory))

    def numbers(self, round: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        parts = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(round, self._summary(value=parts))

    def settings(self, values: Mapping[str, str]) -> None:
        """See `Tracker`: a table in the tab "Text"."""
        from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        rows = "".join(f"| {name} | {text.replace('|', '/')} |\n" for name, text in values.items())
        table = f"| setting | value |\n|---|---|\n{rows}"
        about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[table.encode()])
        self._add(
            0, self._summary(value=[self._summary.Value(tag="settings", metadata=about, tensor=tensor)])
        )

    def _add(self, round: int, summary: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=round, summary=summary))

    def close(self) -> None:
        """See `Tracker`."""
        self._writer.close()


class MLflow(Tracker):
    """A run in an MLflow experiment. Needs the package mlflow or mlflow-skinny.

    Args:
        experiment: its name; it is made if missing.
        name: of the run in MLflow.
        uri: tracking server or store; None: MLflow's own default.
    """

    def __init__(self, experiment: str, *, name: str | None = None, uri: str | None = None):
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
        except ImportError:
            raise _missing("MLflow", "mlflow") from None
        self._client, self._metric, self._param = MlflowClient(uri), Metric, Param
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self._client.create_experiment(experiment)
        self.run_id: str = self._client.create_run(number, run_name=name).info.run_id

    def numbers(self, round: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, round) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def settings(self, values: Mapping[str, str]) -> None:
        """See `Tracker`; MLflow takes at most 100 parameters at a time, of at most 6000 signs."""
        parameters = [self._param(name, text[:6000]) for name, text in values.items()]
        for i in range(0, len(parameters), 100):
            self._client.log_batch(self.run_id, params=parameters[i : i + 100])

    def files(self, directory: Path) -> None:
        """See `Tracker`."""
        for path in sorted(directory.iterdir()):
            if path.is_file() and path.name != "lock":
                self._client.log_artifact(self.run_id, str(path))

    def close(self) -> None:
        """See `Tracker`."""
        if self._client.get_run(self.run_id).info.status == "RUNNING":
            self._client.set_terminated(self.run_id)


class WandB(Tracker):
    """A run in a Weights & Biases project. Needs the package wandb.

    Args:
        project: its name.
        keywords: of `wandb.init`, such as name, group or mode="offline".
    """

    def __init__(self, project: str, **keywords: Any):
        try:
            import wandb
        except ImportError:
            raise _missing("Weights & Biases", "wandb") from None
        self._run = wandb.init(project=project, **keywords)

    def numbers(self, round: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._run.log(dict(values), step=round)

    def settings(self, values: Mapping[str, str]) -> None:
        """See `Tracker`."""
        self._run.config.update(dict(values), allow_val_change=True)

    def close(self) -> None:
        """See `Tracker`."""
        self._run.finish()


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted names → texts; what is None is left out."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{name}.")
        elif value is not None:
            flat[prefix + str(name)] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def _missing(what: str, package: str) -> ConfigError:
    return ConfigError(f"{what} needs the package {package}: pip install {package}.")
