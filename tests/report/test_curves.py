from collections.abc import Callable

import numpy as np
import pytest

from dure.report.curves import curve, figure, group_by_study, to_target
from dure.run import RunWriter


def small_run(
    values: list[float | None], sent: int = 100, seconds: float = 2.0, name: str = "s", seed: int = 0
):
    writer = RunWriter(None, config={"name": name, "seed": seed}, rounds=len(values))
    for r, value in enumerate(values, start=1):
        writer.round({"round": r, "cumulative_uplink_bytes": sent * r, "test_accuracy": value})
        writer.timing({"round": r, "seconds": seconds})
    return writer.run()


def test_the_band_is_students_confidence_interval() -> None:
    values = np.array([[0.46, 0.5], [0.5, 0.52], [0.55, 0.6]])
    runs = [small_run(list(row), sent=100 * (i + 1), seed=i) for i, row in enumerate(values)]
    line = curve(runs, "test_accuracy")
    # t for 95 % and 2 degrees of freedom is 4.302653 (any printed table).
    half = 4.302653 * values.std(axis=0, ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(line.mean, values.mean(axis=0))
    np.testing.assert_allclose(line.high - line.mean, half, rtol=1e-6)
    np.testing.assert_allclose(line.mean - line.low, half, rtol=1e-6)
    np.testing.assert_allclose(line.bytes, [200, 400])


def test_bands_of_shares_stay_within_zero_and_one() -> None:
    line = curve([small_run([0.0, 1.0]), small_run([0.3, 0.7])], "test_accuracy")
    assert line.low.tolist() == [0, 0]
    assert line.high.tolist() == [1, 1]


def test_only_rounds_that_every_seed_has_count() -> None:
    line = curve([small_run([0.1, None, 0.3]), small_run([0.1, 0.2, 0.3, 0.4])], "test_accuracy")
    assert line.rounds.tolist() == [1, 3]


def test_one_seed_has_no_band() -> None:
    line = curve([small_run([0.1, 0.2])], "test_accuracy")
    np.testing.assert_array_equal(line.low, line.high)


def test_to_target_takes_medians_over_the_seeds_that_got_there() -> None:
    runs = [small_run([0.1, 0.6, 0.9]), small_run([0.1, 0.2, 0.7]), small_run([0.1, 0.2, 0.3])]
    found = to_target("s", runs, "test_accuracy", 0.55)
    assert (found.seeds, found.reached) == (3, 2)
    assert (found.rounds, found.bytes, found.seconds) == (2.5, 250, 5.0)
    assert found.clock == "host"
    assert found.final == pytest.approx(np.mean([0.9, 0.7, 0.3]))
    never = to_target("s", runs, "test_accuracy", 0.99)
    assert (never.reached, never.rounds, never.seconds) == (0, None, None)


def test_a_loss_reaches_its_target_from_above() -> None:
    writer = RunWriter(None, config={})
    for r, value in enumerate([2.0, 1.0, 0.5]):
        writer.round({"round": r, "test_loss": value, "cumulative_uplink_bytes": 10 * r})
    assert to_target("s", [writer.run()], "test_loss", 1.0).rounds == 1


def test_simulated_time_goes_before_the_hosts() -> None:
    writer = RunWriter(None, config={})
    for r in (1, 2):
        writer.round({"round": r, "test_accuracy": r / 2, "simulated_seconds": 60.0 * r})
        writer.timing({"round": r, "seconds": 0.1})
    found = to_target("s", [writer.run()], "test_accuracy", 0.9)
    assert (found.seconds, found.clock) == (120.0, "simulated")


def test_seeds_of_a_study_go_together(make_run: Callable) -> None:
    runs = [make_run(f"{name}-{seed}", name=name, seed=seed, rounds=3) for name in "ab" for seed in range(3)]
    groups = group_by_study(runs)
    assert {label: len(members) for label, members in groups.items()} == {"a": 3, "b": 3}
    other = make_run("other", name="a", cohort=7, rounds=3)  # the same name, another configuration
    assert sorted(len(members) for members in group_by_study([*runs, other]).values()) == [1, 3, 3]


def test_the_figure_has_bytes_on_the_left(make_run: Callable) -> None:
    runs = [make_run(str(seed), seed=seed) for seed in range(3)]
    left, right = figure({"a": runs, "b": runs[:1]}, target=0.9).axes
    assert (left.get_xlabel(), right.get_xlabel()) == ("uplink", "round")
    np.testing.assert_array_equal(right.lines[0].get_xdata(), np.arange(31))
    assert left.lines[0].get_xdata()[-1] == runs[0].final["cumulative_uplink_bytes"]
    assert len(left.collections) == 1  # one band: the study with one seed has none
