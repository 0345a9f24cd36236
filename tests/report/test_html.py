import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dure.errors import RunError
from dure.report.curves import group_by_study, to_target
from dure.report.html import compare_html, report_html
from dure.report.svg import Axis, Line, histogram, line_chart, nice_ticks

VOID = {"meta", "br", "rect"}  # rect and path close themselves


class Checked(HTMLParser):
    """Every tag is closed in order, and nothing is fetched."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert tag not in ("link", "img", "iframe", "object", "embed")
        for name, value in attrs:
            assert name not in ("src", "href", "xlink:href"), (tag, name)
            assert "url(" not in (value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"broken": True, "stop": 17, "state": "failed"},
        {"clients": 3000, "cohort": 100, "rounds": 12},
        {"client_evaluation": False, "test": False},
        {"stop": 0, "state": "interrupted", "test": False, "client_evaluation": False},
        {"rounds": 900, "clients": 5},
        {"memory": True},
        {"personal": True},
        {"personal": True, "clients": 300, "cohort": 30, "rounds": 10},
        {"rule": "weighs", "attack": "ALIE"},
        {"rule": "chooses", "attack": "Backdoor", "clients": 300, "cohort": 30, "rounds": 5},
        {"rule": "neither", "memory": True, "broken": True},
        {"rule": "weighs", "attack": "ALIE", "stop": 0, "state": "interrupted"},
    ],
    ids=[
        *("plain", "broken", "many", "bare", "begun", "long", "memory", "personal", "personal-many"),
        *("attacked", "backdoor", "ruled", "ruled-begun"),
    ],
)
def test_the_report_is_one_whole_page_that_fetches_nothing(make_run: Callable, options: dict) -> None:
    run = make_run(**options)
    text = report_html(run)
    page = Checked(text)
    assert "http" not in re.sub(r"<pre>.*?</pre>", "", text)
    assert "@import" not in text
    assert not re.search(r"\bnan\b|\binf\b|None|Infinity", re.sub(r"<script>.*</script>", "", text))
    charts = 4 if "test_accuracy" in run.final else 2 * bool(run.rounds[1:])
    assert page.seen.count("svg") >= charts
    assert len(text) < 400_000


def test_names_cannot_inject_markup(make_run: Callable) -> None:
    text = report_html(make_run(name="<script>alert('x')</script> & \"co\""))
    Checked(text)
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(&#x27;x&#x27;)" in text


def test_bytes_come_before_rounds(make_run: Callable) -> None:
    text = report_html(make_run())
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert titles == [
        "Accuracy against uplink bytes",
        "Loss against uplink bytes",
        "Accuracy against rounds",
        "Loss against rounds",
    ]


def test_charts_carry_the_recorded_values(make_run: Callable) -> None:
    run = make_run()
    text = report_html(run)
    data = json.loads(re.findall(r"data-points='(.*?)'", text)[0].replace("&lt;", "<").replace("&amp;", "&"))
    assert data["label"][0] == "central test set"
    np.testing.assert_allclose(data["y"][0], [record["test_accuracy"] for record in run.rounds], rtol=1e-5)
    assert data["xv"][0][-1] == run.final["cumulative_uplink_bytes"]


def test_the_citation_rejections_and_how_to_repeat_are_told(make_run: Callable) -> None:
    text = report_html(make_run(broken=True))
    assert "Communication-Efficient Learning" in text
    assert "loss is not finite" in text
    assert "Rounds without any usable update, which kept the model: 9, 10" in text
    assert "equal settings give equal bits" in text


def test_a_run_in_memory_needs_a_path(make_run: Callable, tmp_path: Path) -> None:
    run = make_run(memory=True)
    with pytest.raises(RunError, match="say where the report goes"):
        run.report()
    assert run.report(tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(RunError, match="Cannot write"):
        run.report(tmp_path / "missing" / "r.html")


def test_comparison_page(make_run: Callable) -> None:
    runs = [make_run(f"{n}{s}", name=n, seed=s, speed=v) for n, v in (("a", 4), ("b", 9)) for s in range(3)]
    groups = group_by_study(runs)
    reached = [to_target(label, members, "test_accuracy", 0.8) for label, members in groups.items()]
    text = compare_html(groups, "test_accuracy", reached, 0.8)
    page = Checked(text)
    assert page.seen.count("polygon") == 4  # a band per study, in two charts
    assert "3 of 3" in text
    assert "(host)" in text


@settings(deadline=None, max_examples=200)
@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_few_round_and_inside(low: float, span: float) -> None:
    high = low + span
    ticks = nice_ticks(low, high, 4)
    assert len(ticks) <= 6
    slack = 1e-6 * max(abs(low), abs(high), span)
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    assert ticks == sorted(ticks)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_a_histogram_counts_everyone(values: list[float]) -> None:
    text = histogram(values, [], "a")
    Checked(text)
    counts = np.array([float(h) for h in re.findall(r'height="([\d.]+)"', text)]) / 1000
    assert counts.max() == 1  # the largest bin has the full height
    whole = len(values) / counts.sum()
    np.testing.assert_allclose(counts * whole, np.round(counts * whole), atol=0.02 * len(values))


def test_lines_with_gaps_lone_points_and_nothing() -> None:
    x, y = Axis("round", "count"), Axis("")
    gap = line_chart("t", [Line("a", [0, 1, 2, 3], [1.0, float("nan"), 2.0, 3.0])], x, y)
    (path,) = re.findall(r'class="line" stroke="[^"]*" d="([^"]*)"', gap)
    assert path.count("M") == 2
    assert path.count("h0") == 2
    assert "nothing recorded" in line_chart("t", [Line("a", [0.0], [float("nan")])], x, y)
    Checked(line_chart("constant", [Line("a", [0, 1], [5.0, 5.0])], x, y))
