import math
from collections.abc import Callable

import pytest

from dure.report import words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234, "1,234"),
        (0.0831234, "0.08312"),
        (1.2e-7, "1.20e-07"),
        (12345.678, "12,346"),
        (math.nan, "–"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (843, "843 B"),
        (1000, "1 kB"),
        (1_250_000, "1.25 MB"),
        (999_900, "1,000 kB"),
        (3.75e10, "37.5 GB"),
    ],
)
def test_bytes(value: float, text: str) -> None:
    assert words.bytes_(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.34, "340 ms"), (12.5, "12.5 s"), (185, "3 min 05 s"), (7800, "2 h 10 min"), (None, "–")],
)
def test_seconds(value: float | None, text: str) -> None:
    assert words.seconds(value) == text


def test_headline_metric_is_shared_by_all_runs(make_run: Callable) -> None:
    whole, bare = make_run("a"), make_run("b", test=False)
    nothing = make_run("c", test=False, client_evaluation=False)
    assert words.headline_metric([whole]) == "test_accuracy"
    assert words.headline_metric([whole, bare]) == "client_accuracy_mean"
    assert words.headline_metric([whole, bare, nothing]) == "train_loss"


def test_best_is_the_first_of_equals_and_knows_directions(make_run: Callable) -> None:
    run = make_run(rounds=6)
    losses = [record["test_loss"] for record in run.rounds]
    assert words.best(run, "test_loss") == (min(losses), losses.index(min(losses)))
    accuracies = [record["test_accuracy"] for record in run.rounds]
    assert words.best(run, "test_accuracy") == (max(accuracies), accuracies.index(max(accuracies)))


def test_summary_tells_state_cost_and_rejections(make_run: Callable) -> None:
    text = make_run(broken=True, stop=17, state="failed").summary()
    assert "failed after round 17 of 30: disk full" in text
    assert "4 updates set aside" in text
    assert "test accuracy" in text
