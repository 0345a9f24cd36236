"""What a run says about itself besides its records: the machine, and what the data look like."""

import importlib.metadata
import os
import platform
from typing import TYPE_CHECKING, Any

import numpy as np

from dure import keys

if TYPE_CHECKING:
    from dure.data.federated import Federated

PACKAGES = ("dure", "jax", "jaxlib", "numpy", "optax", "flax", "equinox", "scikit-learn")
SHOWN_CLIENTS = 1000  # a picture has room for no more, and 10⁷ clients must not cost a second


def environment() -> dict[str, Any]:
    """Versions, devices and kind of machine: what explains a difference between two machines' results.

    No names of hosts, users or paths.
    """
    import jax

    import dure.devices  # noqa: F401  (decides how many devices there are, so it comes before asking)

    devices = jax.devices()
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "packages": versions,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "backend": devices[0].platform,
        "device": devices[0].device_kind,
        "devices": len(devices),
    }


def data_summary(data: "Federated") -> dict[str, Any]:
    """Sizes, source and client × class counts of a federated data set, for data.json and the report.

    Counts and sizes are of all clients when there are at most 1000, else of 1000 drawn at random (always the
    same ones), so that the cost doesn't grow with the population. Evenly spaced ones would miss what repeats
    from client to client.
    """
    total = int(data.clients)
    shown = np.arange(total)
    if total > SHOWN_CLIENTS:
        shown = np.sort(keys.generator(0, "shown").choice(total, SHOWN_CLIENTS, replace=False, shuffle=False))
    starts, sizes = data.rows(shown)
    names = getattr(data, "client_names", None)
    summary: dict[str, Any] = {
        "name": data.name,
        "source": data.source,
        "licence": data.licence,
        "citation": getattr(data, "citation", ""),
        "clients": total,
        "examples": int(data.examples),
        "columns": {key: [list(np.shape(c)[1:]), str(c.dtype)] for key, c in data.columns.items()},
        "shown_clients": shown,
        "sizes": np.asarray(sizes),
    }
    if names is not None:
        summary["client_names"] = [str(names[int(k)]) for k in shown]
    test = data.test if data.test is not None else data.client_test
    summary["test_examples"] = 0 if test is None else len(next(iter(test.values())))
    if data.classes is not None and "y" in data.columns and np.ndim(data.columns["y"]) == 1:
        labels = data.columns["y"]
        counts = [
            np.bincount(labels[start : start + size], minlength=data.classes)
            for start, size in zip(starts, sizes, strict=True)
        ]
        summary["classes"] = int(data.classes)
        summary["class_counts"] = np.stack(counts)
        if data.class_names is not None:
            summary["class_names"] = [str(name) for name in data.class_names]
    return summary
