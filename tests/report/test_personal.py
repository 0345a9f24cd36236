"""Personal models beside the global one, in the report, the summary and the comparison."""

from collections.abc import Callable

import numpy as np
import pytest

from dure.report import personal, words
from dure.report.curves import group_by_study, to_target
from dure.report.html import compare_html, report_html


def test_the_report_shows_both_models_of_each_client(make_run: Callable) -> None:
    run = make_run(personal=True, rounds=10)
    text = report_html(run)
    assert "Spread under the global model" in text
    assert "Spread under personal models" in text
    assert text.count('class="global"') == 14
    assert "personal models, mean" in text
    assert "and of the client’s own" in text
    assert words.percent(run.final["client_personal_accuracy_worst"], 1) in text


def test_without_personal_models_nothing_speaks_of_them(make_run: Callable) -> None:
    run = make_run(rounds=10)
    text = report_html(run)
    assert "personal" not in text
    assert 'class="global"' not in text
    assert "personal models" not in run.summary()
    assert personal.metric_of([run]) is None


def test_the_summary_tells_mean_p10_and_worst(make_run: Callable) -> None:
    run = make_run(personal=True, rounds=10)
    values = [run.final[f"client_personal_accuracy_{what}"] for what in ("mean", "p10", "worst")]
    mean, p10, worst = map(words.percent, values)
    assert f"personal models: mean {mean}, 10th percentile {p10}, worst {worst}" in run.summary()
    assert words.label("client_personal_accuracy_p10") == "personal accuracy, 10th percentile"


def test_the_comparison_says_what_personal_models_gain(make_run: Callable) -> None:
    runs = [make_run(f"d{s}", name="ditto", seed=s, rounds=10, personal=True, method="Ditto") for s in (0, 1)]
    runs.append(make_run("a", name="alone", rounds=10, personal=True, method="LocalOnly", speed=9.0))
    runs.append(make_run("g", name="global", rounds=10))
    groups = group_by_study(runs)
    assert personal.metric_of(runs) == "accuracy"
    found = personal.served(groups, "accuracy")
    own = np.mean([run.final["client_personal_accuracy_mean"] for run in runs[:2]])
    assert found["ditto"].personal[0] == pytest.approx(own)
    assert found["ditto"].gain == pytest.approx(own - runs[2].final["client_personal_accuracy_mean"])
    assert found["alone"].gain == 0
    assert found["global"].personal == (None, None, None)
    assert found["global"].shared[0] == pytest.approx(runs[3].final["client_accuracy_mean"])
    assert personal.cells("ditto", found["ditto"], "accuracy", True)[-1].startswith("+")
    assert personal.cells("global", found["global"], "accuracy", True)[-1] == words.DASH
    reached = [to_target(label, members, "test_accuracy", 0.8) for label, members in groups.items()]
    text = compare_html(groups, "test_accuracy", reached, 0.8)
    assert "gain over local only" in text
    assert "Personal models" in text


def test_one_axis_for_two_histograms() -> None:
    from dure.report.svg import histogram

    low, high = histogram([0.2, 0.3], [], "a", beside=[0.9]), histogram([0.9], [], "a", beside=[0.2, 0.3])
    ticks = [text.split('class="xticks"')[1].split("</div>")[0] for text in (low, high)]
    assert ticks[0] == ticks[1]
