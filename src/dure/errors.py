"""What can go wrong, in three kinds: the configuration, the data, the run.

Every message says what was wrong (with the value), where (client, round, key) and what to do. The
command line turns `ConfigError` and `DataError` into exit code 2 and every other `DureError` into 1.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class DureError(Exception):
    """Base of all errors that dure raises on purpose."""


class ConfigError(DureError, ValueError):
    """An argument or a configuration key has an impossible value, or a combination breaks a guarantee."""


class DomainError(ConfigError):
    """An aggregation rule can't keep its promise for so many updates and so many hostile ones among them.

    Attributes:
        rule: the rule's name.
        n: usable updates.
        f: hostile ones that must be reckoned with.
        need: the condition that fails, such as "n ≥ 2f + 3".
    """

    def __init__(self, rule: str, n: int, f: int, need: str, more: str = ""):
        self.rule, self.n, self.f, self.need = rule, n, f, need
        super().__init__(
            f"{rule} needs {need}, and there are n={n} usable updates of which f={f} may be hostile. "
            f"{more or 'Take more clients per round, a smaller f, or another rule.'}"
        )


class DataError(DureError, ValueError):
    """The data cannot be used as they are: lengths, labels, missing values, empty clients."""


class RunError(DureError, RuntimeError):
    """A run could not go on or could not be read: disk, checkpoint, nothing left to aggregate."""


def sentence(message: object) -> str:
    """A message, such as another error's, with one full stop at its end: more can be said behind it."""
    text = str(message).rstrip()
    return text if text.endswith(("?", "!", "…")) else text.rstrip(".") + "."


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """A sentence with the nearest valid name, or with all valid names when none is near."""
    names = sorted(allowed)
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"Valid names: {', '.join(names)}."
