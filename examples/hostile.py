"""Fourteen writers, three of them hostile: the mean against nearest-neighbour mixing and the trimmed mean."""

import dure
from dure.aggregation import NNM, Mean, Rule, TrimmedMean, chain
from dure.attacks import ALIE, IPM, Attack, SignFlip

digits = dure.data.digits()
task = dure.classification(dure.models.softmax_regression(64, 10))
rules: dict[str, Rule] = {"mean": Mean(), "NNM + trimmed mean": chain(NNM(f=3), TrimmedMean(f=3))}
attacks: dict[str, Attack] = {
    "sign flip": SignFlip(),
    "a little is enough, z = 1.5": ALIE(z=1.5),
    "the same, far too much": ALIE(z=10.0),
    "inner product, scale 5": IPM(scale=5.0),
}


def train(rule: Rule, attack: Attack | None) -> dure.Run:
    hostile = {} if attack is None else {"attack": attack, "attackers": 3}
    return dure.simulate(
        dure.FedAvg(), task, digits, rounds=20, epochs=2, optimizer=0.5, aggregator=rule, **hostile
    )


print(f"{'test accuracy':28s}", *(f"{name:>20s}" for name in rules))
for name, attack in {"nobody is hostile": None, **attacks}.items():
    accuracies = [train(rule, attack).final["test_accuracy"] for rule in rules.values()]
    print(f"{name:28s}", *(f"{accuracy:20.1%}" for accuracy in accuracies))

# Whom the rule suspects after the last attack, and who was hostile in truth.
run = train(rules["NNM + trimmed mean"], attacks["inner product, scale 5"])
print(run.summary())
print(run.suspicion()[["name", "suspicion", "distance_rank", "attacker"]].head(5).to_string(index=False))
