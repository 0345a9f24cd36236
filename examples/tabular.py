"""Four hospitals: scales, an exact logistic regression and boosted trees, none of which needs a row to leave."""

import numpy as np
from sklearn.linear_model import LogisticRegression

import dure

heart = dure.data.heart(normalise="none")
test = heart.client_test or {}

# What the hospitals' columns look like together, from one round of sums.
moments = dure.statistics.moments(heart)
print(moments)


def scaled(x: np.ndarray) -> np.ndarray:
    return ((x - moments.mean) / moments.standard_deviation).astype(np.float32)


table = dure.Federated(
    {"x": scaled(heart.columns["x"]), "y": heart.columns["y"]},
    heart.offsets,
    client_test={"x": scaled(test["x"]), "y": test["y"]},
    client_test_offsets=heart.client_test_offsets,
    client_names=heart.client_names,
)

# The logistic regression of the pooled patients, by exact local solutions.
run = dure.simulate(dure.ConsensusADMM(rho=0.1), LogisticRegression(C=1.0), table, rounds=60)
print(run.summary())
print("logistic regression:", run.estimator().score(scaled(test["x"]), test["y"]))

# The boosted trees of the pooled patients, from summed histograms.
boosted = dure.boosting.fit(dure.boosting.GradientBoosting(trees=40, depth=3), heart)
print("boosted trees:", (boosted.predict(test["x"]) == test["y"]).mean())
