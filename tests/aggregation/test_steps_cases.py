"""The reference cases for pre-aggregators, and for rules that compare, cluster or clip."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dure.aggregation import ARC, NNM, RLR, Bucketing, Clipping, FLTrust, FoolsGold, TrimmedMean, chain

CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).parent / "robust_cases.json").read_text())["cases"]
}


def rows(case: dict[str, Any]) -> np.ndarray:
    return np.array(case["inputs"], np.float64)


def close(found: np.ndarray, case: dict[str, Any], expected: Any = None) -> None:
    expected = case["expected"] if expected is None else expected
    np.testing.assert_allclose(found, expected, rtol=case["tol"], atol=case["tol"])


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("nnm", lambda p: NNM(f=p["f"])),
        ("bucketing_s2", lambda p: Bucketing(p["s"], tuple(p["permutation"]))),
        ("clip_c2", lambda p: Clipping(p["c"])),
        ("arc_f2", lambda p: ARC(f=p["f"])),
    ],
)
def test_pre_aggregators(name: str, step: Any) -> None:
    case = CASES[name]
    found = step(case["params"])(rows(case))
    close(found.matrix, case)
    close(found.weights_used @ rows(case), case)


def test_nearest_neighbour_mixing_and_trimmed_mean() -> None:
    case = CASES["nnm_then_trmean"]
    rule = chain(NNM(f=case["params"]["pre"][0]["f"]), TrimmedMean(f=case["params"]["f"]))
    close(rule(rows(case)).vector, case)


def test_fltrust() -> None:
    case = CASES["fltrust"]
    found = FLTrust()(rows(case), server=np.array(case["params"]["server_update"]))
    close(found.vector, case)
    assert found.scores is not None
    np.testing.assert_allclose(1.0 - found.scores, case["trust_scores"], atol=1e-7)
    np.testing.assert_allclose(found.details["trust"], case["trust_scores"], atol=1e-7)


def test_foolsgold() -> None:
    case = CASES["foolsgold"]
    found = FoolsGold(confidence=case["params"]["kappa"])(rows(case))
    assert found.scores is not None
    close(1.0 - found.scores, case)
    close(found.vector, case, np.array(case["expected"]) @ rows(case) / len(rows(case)))


def test_robust_learning_rate() -> None:
    case = CASES["rlr"]
    found = RLR(threshold=case["params"]["theta"], lr=case["params"]["eta"])(rows(case))
    close(found.vector, case)
    np.testing.assert_array_equal(found.details["lr_sign"], case["lr_sign"])
