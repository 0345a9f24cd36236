"""What the aggregation rule thought of every client, over the whole run."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from dure.run.reader import Run

#: The columns of `Run.suspicion`, with the types that they have.
COLUMNS = {
    "client": "int64",
    "name": "object",
    "suspicion": "float64",
    "rounds": "int64",
    "judged": "int64",
    "kept": "float64",
    "dropped": "int64",
    "relative_weight": "float64",
    "score_rank": "float64",
    "distance_rank": "float64",
    "last_round": "int64",
    "attacker": "bool",
}
DROPPED = "not finite"  # in the status of an update that the rule could not use


def suspicion(run: "Run") -> "pd.DataFrame":
    """See `Run.suspicion`."""
    import pandas as pd

    rows = judgements(run)
    if rows.empty:
        return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in COLUMNS.items()})
    by = rows.groupby("client", sort=True)
    table = pd.DataFrame(
        {
            "suspicion": by["suspicion"].mean(),
            "rounds": by["round"].nunique(),
            "judged": by["judged"].sum(),
            "kept": by["kept"].mean(),
            "dropped": by["dropped"].sum(),
            "relative_weight": by["relative_weight"].mean(),
            "score_rank": by["score_rank"].mean(),
            "distance_rank": by["distance_rank"].mean(),
            "last_round": by["round"].max(),
            "attacker": by["attacker"].max(),
        }
    ).reset_index()
    table["name"] = [run.client_name(int(client)) for client in table["client"]]
    table = table[list(COLUMNS)].astype(COLUMNS)
    return table.sort_values(["suspicion", "client"], ascending=[False, True], ignore_index=True)


def judgements(run: "Run") -> "pd.DataFrame":
    """The participation with, per row, what the rule did with the update; no rows for a run without a rule."""
    frame = run.participation
    if "selected" not in frame:
        return frame.iloc[:0]
    skipped = [r["round"] for r in run.rounds if str(r.get("status", "")).startswith("skipped")]
    root = (run.config.get("aggregator") or {}).get(
        "root"
    )  # the server's own update, which judges the others
    return frame.assign(**_judged(frame, skipped, -1 if root is None else int(root)))


def _judged(frame: "pd.DataFrame", skipped: list[int], root: int) -> dict[str, Any]:
    """Per row of the participation: what the rule did with the update, NaN where it never saw it."""
    import pandas as pd

    weight, score, distance = (
        pd.to_numeric(frame[name]).astype("float64") for name in ("rule_weight", "score", "distance")
    )
    selected, round_skipped = frame["selected"].astype(bool), frame["round"].isin(skipped)
    broken = frame["status"].str.contains(DROPPED) & ~selected & ~round_skipped
    judged = (selected | distance.notna() | broken) & (frame["client"] != root)
    broken &= judged
    used = judged & ~broken
    own = frame["weight"].where(used)
    relative = (weight * own.groupby(frame["round"]).transform("sum") / own).where(used)
    scores, distances = (
        _ranks(frame["round"], score.where(used)),
        _ranks(frame["round"], distance.where(used)),
    )
    treated = 1.0 - relative.clip(0.0, 1.0)
    if (used & ~selected).any():  # a rule that chooses; where it takes everyone every time, that says nothing
        treated = treated.fillna(1.0 - selected.astype("float64").where(used))
    doubt = pd.concat([treated, scores], axis=1).mean(axis=1).fillna(distances)
    return {
        "judged": judged,
        "distance": distance.where(used),
        "kept": selected.astype("float64").where(judged),
        "dropped": broken,
        "relative_weight": relative.where(~broken, 0.0),
        "score_rank": scores,
        "distance_rank": distances,
        "suspicion": doubt.where(~broken, 1.0),
    }


def _ranks(rounds: Any, values: Any) -> Any:
    """Ranks within the rounds, from 0 (the smallest) to 1 (the largest), ties in the middle; 1/2 for one alone."""
    groups = values.groupby(rounds)
    ranks, counts = groups.rank(method="average"), groups.transform("count")
    return ((ranks - 1.0) / (counts - 1.0)).where(counts > 1, np.where(values.notna(), 0.5, np.nan))
