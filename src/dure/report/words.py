"""Numbers as people read them, and what is said about a run in one line."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dure.run import Run

Number = int | float  # an int is no float where annotations are executed
# Shown as percentages; every other metric is shown as a number.
SHARES = ("accuracy", "f1", "precision", "recall", "error_rate")
DASH = "–"


def is_share(key: str) -> bool:
    """Whether a metric is a fraction of one that reads best as a percentage."""
    return any(word in key for word in SHARES)


def number(value: Number | None, digits: int = 4) -> str:
    """A number with `digits` significant digits and thousands separated: 1,234 · 0.08312 · 1.2e-07."""
    if value is None or not math.isfinite(value):
        return DASH
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{int(value):,}"
    if 1e-4 <= abs(value) < 1e9:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:,.{decimals}f}"
    return f"{value:.{max(1, digits - 2)}e}"


def percent(value: Number | None, digits: int = 2) -> str:
    """0.9512 as 95.12 %."""
    return DASH if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f} %"


def metric(key: str, value: Number | None, digits: int = 2) -> str:
    """A metric's value in the form that suits its name; `digits` is for percentages."""
    return percent(value, digits) if is_share(key) else number(value)


def bytes_(value: Number | None) -> str:
    """Bytes in decimal units (1 MB = 10⁶ bytes, as networks are sold): 843 B · 1.25 MB · 37.5 GB."""
    if value is None or not math.isfinite(value):
        return DASH
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 999.5 * size else f"{value / size:,.0f} {unit}"
    return f"{value:.0f} B"


def seconds(value: Number | None) -> str:
    """A duration: 340 ms · 12.5 s · 3 min 05 s · 2 h 10 min."""
    if value is None or not math.isfinite(value):
        return DASH
    if value < 1:
        return f"{1000 * value:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60):02d} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60):02d} min"


def plural(count: int, noun: str) -> str:
    """1 client, 14 clients."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def label(key: str) -> str:
    """A record's key in words: client_accuracy_p10 → client accuracy, 10th percentile."""
    text = key.replace("_", " ").replace("client personal ", "personal ")
    return text.replace(" p10", ", 10th percentile").replace("f1", "F1")


def headline_metric(runs: Iterable["Run"]) -> str | None:
    """The metric a run is judged by: central accuracy, another central score, client accuracy, else a loss.

    Only what every one of the runs has recorded counts; None when they share nothing.
    """
    shared: set[str] | None = None
    order: list[str] = []
    for run in runs:
        keys = [key for key, value in run.final.items() if isinstance(value, int | float)]
        order = order or keys
        shared = set(keys) if shared is None else shared & set(keys)
    keys = [key for key in order if key in (shared or set())]
    scores = [key for key in keys if key.startswith("test_") and not _is_cost(key)]
    for choice in ("test_accuracy", *scores, "client_accuracy_mean", "test_loss", "train_loss", "objective"):
        if choice in keys:
            return choice
    return None


def _is_cost(key: str) -> bool:
    return any(word in key for word in ("loss", "entropy", "error", "examples"))


def higher_is_better(key: str) -> bool:
    """Accuracies go up, losses, errors and entropies go down."""
    return not (_is_cost(key) or key == "objective")


def best(run: "Run", key: str) -> tuple[float, int] | None:
    """The best value of a metric over the rounds and the round of it; None if it was never recorded."""
    values = [(float(r[key]), int(r["round"])) for r in run.rounds if r.get(key) is not None]
    if not values:
        return None
    sign = 1 if higher_is_better(key) else -1
    return max(values, key=lambda pair: (sign * pair[0], -pair[1]))


def uplink(run: "Run") -> float:
    """Bytes that all clients have sent, over the whole run."""
    return float(run.final.get("cumulative_uplink_bytes") or 0)


def downlink(run: "Run") -> float:
    """Bytes that the server has sent, over the whole run."""
    return float(sum(record.get("downlink_bytes") or 0 for record in run.rounds))


def wall_seconds(run: "Run") -> float | None:
    """Seconds on the clock of the machine that simulated, None if nothing was timed."""
    values = [record["seconds"] for record in run.timings if record.get("seconds") is not None]
    return float(sum(values)) if values else None


def title_of(run: "Run") -> str:
    """Such as "FedAvg · digits · softmax_regression", of what the configuration names."""
    parts = [name_of(run.config.get(part)) for part in ("algorithm", "data", "model")]
    attack = attack_of(run)
    parts += [rule_of(run), f"against {attack}" if attack else ""]
    return " · ".join(part for part in parts if part)


def parts_of(run: "Run") -> list[str]:
    """The names of the aggregation rule's parts, pre-aggregators first; none for a run without a rule."""
    return [str(part["kind"]) for part in _rule_parts(run)]


def reckoned(run: "Run") -> str:
    """f, the hostile clients that the rule reckons with; empty where it names none."""
    named = {part["f"]: None for part in _rule_parts(run) if part.get("f") is not None}
    return ", ".join(map(str, named))


def rule_of(run: "Run") -> str:
    """Such as "NNM + TrimmedMean (f = 3)"; empty for a run without an aggregation rule."""
    f = reckoned(run)
    return " + ".join(parts_of(run)) + (f" (f = {f})" if f else "")


def attack_of(run: "Run") -> str:
    """Such as "ALIE, 3 attackers"; empty for a run without an attack."""
    attack = run.config.get("attack")
    if not attack:
        return ""
    names, kind = [], attack.get("kind")
    while isinstance(kind, dict):  # from a backdoor to its trigger
        names.append(str(kind["kind"]))
        kind = kind.get("data") or kind.get("attack")
    return (
        f"{' with '.join(names) or name_of(kind)}, {plural(len(attack.get('attackers') or []), 'attacker')}"
    )


def _rule_parts(run: "Run") -> list[dict[str, Any]]:
    rule = (run.config.get("aggregator") or {}).get("rule")
    if not isinstance(rule, dict):
        return [] if rule is None else [{"kind": str(rule)}]
    if isinstance(rule.get("before"), list) and isinstance(rule.get("rule"), dict):
        return [*rule["before"], rule["rule"]]
    return [rule]


def name_of(section: Any) -> str:
    """The name in a section of the configuration: its "name", or the "kind" of an object."""
    if isinstance(section, dict):
        return str(section.get("name") or section.get("kind") or "")
    return str(section or "")


def state_sentence(run: "Run") -> str:
    """Complete after 30 rounds; interrupted after round 12 of 30; failed after round 3 of 30: reason."""
    status = run.status
    state, done, rounds = status["state"], int(status.get("round") or 0), status.get("rounds")
    done = max([done, *(int(record["round"]) for record in run.rounds[-1:])])
    if state == "complete":
        return f"complete after {plural(done, 'round')}"
    text = f"{state} after round {done:,}" + (f" of {rounds:,}" if rounds else "")
    return text + (f": {status['error']}" if status.get("error") else "")


def summary(run: "Run") -> str:
    """A few lines: what ran, how far, how well, at what cost."""
    lines = [f"{run.name}: {title_of(run)}".rstrip(": "), f"  {state_sentence(run)}"]
    key = headline_metric([run])
    if key:
        value = f"  {label(key)} {metric(key, float(run.final[key]))}"
        top = best(run, key)
        if top and top[0] != float(run.final[key]):
            value += f" (best {metric(key, top[0])} in round {top[1]})"
        lines.append(value)
    worst = run.final.get("client_accuracy_worst")
    if worst is not None:
        p10 = run.final.get("client_accuracy_p10")
        lines.append(f"  clients: 10th percentile {percent(p10)}, worst {percent(worst)}")
    own = run.final.get("client_personal_accuracy_mean")
    if own is not None:
        p10, worst = (run.final.get(f"client_personal_accuracy_{what}") for what in ("p10", "worst"))
        lines.append(
            f"  personal models: mean {percent(own)}, 10th percentile {percent(p10)}, worst {percent(worst)}"
        )
    lines.append(f"  uplink {bytes_(uplink(run))}, downlink {bytes_(downlink(run))}")
    rejected = sum(int(record.get("rejected") or 0) for record in run.rounds)
    if rejected:
        lines.append(f"  {plural(rejected, 'update')} set aside (see run.participation)")
    lines += _defence(run)
    if run.directory is not None:
        lines.append(f"  {run.directory}")
    return "\n".join(lines)


def _defence(run: "Run") -> list[str]:
    """What the aggregation rule did, for the summary."""
    if not rule_of(run):
        return []
    totals = {
        key: sum(int(record.get(key) or 0) for record in run.rounds) for key in ("clients", "rule_selected")
    }
    skipped = sum(str(record.get("status", "")).startswith("skipped") for record in run.rounds)
    used = f"used {totals['rule_selected']:,} of {plural(totals['clients'], 'update')}"
    more = f", {plural(skipped, 'round')} skipped" if skipped else ""
    lines = [f"  {rule_of(run)}: {used}{more} (see run.suspicion())"]
    known = [float(record["kappa"]) for record in run.rounds if record.get("kappa") is not None]
    if known:
        bound = max(
            (float(r["kappa_bound"]) for r in run.rounds if r.get("kappa_bound") is not None), default=None
        )
        promised = f", promised at most {number(bound, 3)}" if bound is not None else ""
        lines.append(f"  against {attack_of(run)}: κ at most {number(max(known), 3)}{promised}")
    backdoor = run.final.get("backdoor_accuracy")
    if backdoor is not None:
        lines.append(f"  the backdoor works on {percent(backdoor)} of the test rows with its trigger")
    return lines
