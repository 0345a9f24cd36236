import re
from collections.abc import Callable
from html import unescape

import pytest

from dure.report import hostile, words
from dure.report.curves import group_by_study, to_target
from dure.report.html import compare_html, notebook_card, report_html
from dure.run import Run


def section(run: Run) -> str:
    found = re.search(r"<h2>Hostile clients</h2>.*?</section>", report_html(run), re.S)
    return unescape(found.group()) if found else ""


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_a_run_without_a_rule_has_no_such_section(make_run: Callable) -> None:
    run = make_run(rounds=4)
    assert section(run) == ""
    assert "suspicion" not in run.summary()
    assert words.title_of(run) == "FedAvg · digits · softmax_regression"
    assert "<th>rule</th>" not in notebook_card(run)


def test_the_rule_and_the_attack_are_named_everywhere(make_run: Callable) -> None:
    run = make_run(rounds=6, rule="weighs", attack="ALIE")
    title = "FedAvg · digits · softmax_regression · NNM + TrimmedMean (f = 2) · against ALIE, 2 attackers"
    assert words.title_of(run) == title
    assert title in run.summary()
    text = plain(section(run))
    assert "go through NNM + TrimmedMean (f = 2). The attack: ALIE, 2 attackers." in text
    assert "attackers 2 of 14 clients" in text
    assert "rounds skipped 1 of 6" in text
    assert "<td>ALIE, 2 attackers</td>" in notebook_card(run)


def test_the_summary_counts_what_the_rule_kept(make_run: Callable) -> None:
    text = make_run(rounds=6, rule="weighs", attack="Backdoor").summary()
    # 14 clients a round in 6 rounds; 12 were kept in all but the skipped one
    assert "NNM + TrimmedMean (f = 2): used 60 of 84 updates, 1 round skipped (see run.suspicion())" in text
    assert re.search(
        r"against Backdoor, 2 attackers: κ at most 0\.3\d+, promised at most 0\.9\d*$", text, re.M
    )
    assert "the backdoor works on 25.00 % of the test rows" in text


def test_the_suspects_are_listed_with_the_truth(make_run: Callable) -> None:
    run = make_run(rounds=6, rule="weighs", attack="ALIE")
    body = section(run)
    rows = re.findall(r"<tr><td>writer (\d+)</td>.*?</tr>", body, re.S)
    assert len(rows) == hostile.SUSPECTS
    assert rows[:2] == ["1", "2"]  # clients 0 and 1
    assert body.count("<b class=bad>attacker</b>") == 2
    assert body.count('class="fill hostile" style="width:100.0%"') == 2
    assert "Of the 2 most suspect clients 2 are the attacker’s." in plain(body)
    assert "What the rule said" in body
    assert "1–2, 5" in body
    assert "Skipped, the model stays: NNM needs 2f < n" in body


def test_without_an_attack_nobody_is_called_honest(make_run: Callable) -> None:
    body = section(make_run(rounds=6, rule="weighs"))
    assert "No attack was simulated." in body
    assert "in truth" not in body
    assert "honest" not in body
    assert "<figure" not in body  # no κ, no backdoor, no two kinds of clients


@pytest.mark.parametrize(
    ("rule", "attack", "charts"),
    [
        ("weighs", "ALIE", ["The aggregate’s error κ", "Weight of an update (1: as in the mean)"]),
        ("chooses", "ALIE", ["The aggregate’s error κ", "Updates that the rule kept"]),
        (
            "neither",
            "Backdoor",
            ["The aggregate’s error κ", "Distance from the aggregate", "Backdoor accuracy"],
        ),
    ],
)
def test_charts_show_what_there_is(make_run: Callable, rule: str, attack: str, charts: list[str]) -> None:
    body = section(make_run(rounds=6, rule=rule, attack=attack))
    assert re.findall(r"<figcaption>(.*?)</figcaption>", body) == charts
    assert "promised at most" in body  # 0.9 is near enough to 0.3 … 0.4 to be drawn
    assert ("neither chooses nor weighs" in body) == (rule == "neither")


def test_a_skipped_round_is_a_gap(make_run: Callable) -> None:
    body = section(make_run(rounds=6, rule="weighs", attack="ALIE"))
    measured, promised = re.findall(r'<path class="line[^"]*" stroke="[^"]*" d="([^"]*)"', body)[:2]
    assert measured.count("M") == promised.count("M") == 2  # rounds 1–2 and 4–6
    assert measured.count("L") == 3


def test_a_bound_far_above_is_said_and_not_drawn(make_run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "NEAR", 2.0)
    body = section(make_run(rounds=6, rule="weighs", attack="ALIE"))
    assert "κ (promised: at most 0.900)" in body
    assert '<i style="background:var(--c8)" class=thin></i>promised' not in body


def test_comparisons_say_which_rule_held(make_run: Callable) -> None:
    runs = [
        make_run("a/0", name="robust", rounds=6, rule="weighs", attack="Backdoor"),
        make_run("a/1", name="robust", rounds=6, rule="weighs", attack="Backdoor", seed=1),
        make_run("b", name="plain", rounds=6),
    ]
    groups = group_by_study(runs)
    assert [len(members) for members in groups.values()] == [2, 1]
    rows = [hostile.cells(label, members) for label, members in groups.items()]
    assert rows[0][:3] == ["robust", "NNM + TrimmedMean (f = 2)", "Backdoor, 2 attackers"]
    assert rows[0][4:] == ["25.00 %", "0", "1"]
    assert 0.3 < float(rows[0][3]) < 0.4
    assert rows[1] == ["plain", *["–"] * 4, "–", "–"]
    key = "test_accuracy"
    reached = [to_target(label, members, key, 0.5) for label, members in groups.items()]
    assert "NNM + TrimmedMean (f = 2)" in compare_html(groups, key, reached, None)
    alone = {"plain": groups["plain"]}
    assert "Hostile" not in compare_html(alone, key, reached[1:], None)


def test_seeds_that_drew_other_attackers_are_one_study(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [make_run(f"{seed}", rounds=2, rule="weighs", attack="ALIE", seed=seed) for seed in (0, 1)]
    runs[1].config["attack"]["attackers"] = [4, 9]
    assert [len(members) for members in group_by_study(runs).values()] == [2]
    runs[1].config["attack"]["attackers"] = [4, 9, 11]
    assert [len(members) for members in group_by_study(runs).values()] == [1, 1]


def test_ranges() -> None:
    assert hostile.in_ranges([1, 2, 3, 7, 9, 10]) == "1–3, 7, 9–10"
    assert hostile.in_ranges([]) == ""
    assert hostile.in_ranges([5, 5, 4]) == "4–5"
    assert hostile.in_ranges(range(0, 60, 2), most=2) == "0, 2, …"


def test_names_cannot_inject_markup(make_run: Callable) -> None:
    run = make_run(rounds=4, rule="weighs", attack="<b>x")
    run.data["client_names"][0] = "<script>alert(1)</script>"
    text = report_html(run)
    assert "<script>alert(1)" not in text
    assert "<b>x" not in text
