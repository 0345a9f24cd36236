"""The numeric cases of tests/aggregation/robust_cases.json: closed forms and independent evaluations."""

import json
from pathlib import Path

import numpy as np
import pytest

from dure.aggregation import (
    CAF,
    CGE,
    MDA,
    RFA,
    SMEA,
    CenteredClipping,
    DnC,
    GeometricMedian,
    Krum,
    MeaMed,
    Mean,
    Median,
    MoNNA,
    MultiKrum,
    TrimmedMean,
)

CASES = {
    case["id"]: case
    for case in json.loads(Path(__file__).with_name("robust_cases.json").read_text())["cases"]
}

RULES = {
    "mean": Mean(),
    "median_even": Median(f=1),
    "trmean_f2": TrimmedMean(2),
    "krum_byzfl_variant": Krum(2, neighbours="n-f-1"),
    "multikrum_m3": MultiKrum(2, m=3),
    "gm_byzfl_T3": RFA(2, steps=3, smoothing=0.1, start="center"),
    "gm_converged": GeometricMedian(2),
    "cclip_L1": CenteredClipping(1.0, steps=1),
    "mda": MDA(2),
    "monna": MoNNA(2, trusted=4),
    "meamed": MeaMed(2),
    "smea_exact": SMEA(2),
    "caf_exact": CAF(2, tau_max="all_rows"),
    "cge": CGE(2),
    "dnc_fulldim": DnC(2, iterations=1, columns=3),
}


@pytest.mark.parametrize("name", RULES)
def test_the_case_holds(name):
    case, rule = CASES[name], RULES[name]
    updates = np.array(case["inputs"])
    center = case["params"].get("center")
    found = rule(updates, center=None if center is None else np.array(center))
    np.testing.assert_allclose(found.vector, case["expected"], rtol=case["tol"], atol=case["tol"])
    if "selected" in case:
        np.testing.assert_array_equal(found.selected, np.atleast_1d(case["selected"]))
    if "scores" in case:
        np.testing.assert_allclose(found.scores, case["scores"], rtol=1e-7, atol=1e-7)
    for detail in ("diameter", "lambda_max", "iterations"):
        if detail in case:
            assert found.details[detail] == pytest.approx(case[detail], rel=1e-9), detail


def test_the_cases_tell_variants_apart():
    updates = np.array(CASES["caf_exact"]["inputs"])
    expected = CASES["caf_exact"]["expected"]
    assert np.abs(CAF(2)(updates).vector - expected).max() > 1e-3
    assert (
        np.abs(
            RFA(2, steps=3, smoothing=0.1, start="mean")(updates).vector - CASES["gm_byzfl_T3"]["expected"]
        ).max()
        > 1e-3
    )
