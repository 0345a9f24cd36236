"""What an attack is: a frozen dataclass that says what the clients under its control do instead of their work.

An attack may act in several places: on the attackers' data (`poison`), on what they send (`updates`), on the
number of examples that they claim (`weights`), and on their local training (`mask`, `radius`). Everything is a
pure function of arrays; what is not overridden is honest.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from dure.aggregation.kernels.threads import one_blas_thread
from dure.errors import ConfigError, DataError

Knowledge = Literal["own", "updates", "rule"]
#: inputs, labels that count as success, and which rows count
Triggered = tuple[np.ndarray, np.ndarray, np.ndarray]


class Scene(NamedTuple):
    """What an attacker may know in a round. Rows are whole updates (differences), float32 or float64.

    Attributes:
        honest: (h, d) updates of the honest clients in the cohort; (0, d) where the attack's knowledge is "own".
        own: (b, d) what the attackers' clients would have sent: the results of their (perhaps poisoned) training.
        previous: (d,) the last aggregate, zeros in round 1.
        rule: the server's whole rule, pre-aggregators included, as (n, d) → (d,), for the knowledge "rule";
            rows: the honest ones, then the attackers'.
        round: the number of the round, from 1.
        key: an integer in [0, 2⁶³) that everything random follows from.
        state: the attack's memory, as its last `Sent` returned it; None at first.
        share: 1 / (number of clients in the mean): what one update counts for.
    """

    honest: np.ndarray
    own: np.ndarray
    previous: np.ndarray
    rule: Callable[[np.ndarray], np.ndarray] | None
    round: int
    key: int
    state: dict[str, np.ndarray] | None
    share: float


class Sent(NamedTuple):
    """What the attackers send in a round.

    Attributes:
        rows: (b, d) in the dtype of `Scene.own`: a new array, never a view.
        state: the attack's memory for the next round; None for an attack without.
    """

    rows: np.ndarray
    state: dict[str, np.ndarray] | None = None


class View(NamedTuple):
    """What attackers may look at before a round: the global model, and the rows that are theirs.

    Attributes:
        inputs: (n, …) the attackers' own clean inputs.
        targets: (n,) their labels.
        w: (d,) the global model's parameters.
        by_inputs: (w, inputs, labels) → d (mean loss) / d inputs.
        by_model: (w, inputs, labels) → d (mean loss) / d w, (d,).
        key: an integer in [0, 2⁶³) that everything random follows from.
    """

    inputs: np.ndarray
    targets: np.ndarray
    w: np.ndarray
    by_inputs: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    by_model: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    key: int


class Attack:
    """What clients under one attacker's control do. On its own it is no attack: all that it says is the default.

    Attributes:
        citation: where it was published.
        knowledge: "own": the attackers know what their own clients computed, and the last aggregate; "updates":
            also what every honest client of the cohort sends; "rule": also the server's rule.
        poisons: whether `poison` does something.
        radius: the attackers' local models are projected to a ball of this radius (2-norm) around the round's
            start; None: they aren't.
    """

    citation: str = ""
    knowledge: Knowledge = "own"
    poisons: bool = False
    radius: float | None = None

    def updates(self, scene: Scene) -> Sent:
        """What the attackers send.

        A cohort without attackers, or a model without parameters, leaves everything as it is.

        Raises:
            DataError: the arrays of the scene don't fit together.
            ConfigError: the attack needs something that the scene doesn't have, such as the rule.
        """
        honest, own = scene.honest, scene.own
        fits = (
            own.ndim == 2 and honest.ndim == 2 and scene.previous.shape == own.shape[1:] == honest.shape[1:]
        )
        if not fits or own.dtype.kind != "f":
            raise DataError(
                f"The scene has honest{list(honest.shape)}, own{list(own.shape)} ({own.dtype}) and "
                f"previous{list(scene.previous.shape)}: they must be (h, d), (b, d) floating-point and (d,)."
            )
        if not own.size:
            return Sent(own.copy(), scene.state)
        if self.knowledge == "rule" and scene.rule is None:
            raise ConfigError(f"{type(self).__name__} tries the server's rule, and the scene has rule=None.")
        with one_blas_thread():  # the last bits depend on the threads of a sum
            return self.craft(scene)

    def craft(self, scene: Scene) -> Sent:
        """The attack itself: what `updates` returns where there is at least one attacker and one parameter."""
        return Sent(scene.own.copy(), scene.state)

    @property
    def adapts(self) -> bool:
        """Whether the attack looks at the global model before a round."""
        return type(self).adapt is not Attack.adapt

    def adapt(self, view: View) -> "Attack":
        """The attack for the next round, made for the global model; itself by default."""
        return self

    def snapshot(self) -> dict[str, np.ndarray]:
        """What `adapt` has changed, for a checkpoint."""
        return {}

    def restored(self, snapshot: dict[str, np.ndarray]) -> "Attack":
        """The attack with what `snapshot` gave."""
        return self

    def poison(
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        client_key: int,
        classes: int | None,
        attacker: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The training data of one attacker: new arrays of the same shapes, or the same ones if unchanged.

        Args:
            inputs: (n, …) the client's inputs.
            targets: (n,) their labels.
            client_key: an integer in [0, 2⁶³) of this client's own, that everything random follows from.
            classes: the number of classes; None where the task has none.
            attacker: which of the attackers this is, from 0, for attacks that share the work among them; None: it
                follows from the key.

        Raises:
            DataError: data that the attack can't be applied to.
        """
        return inputs, targets

    def parts(self) -> int:
        """Into how many parts attackers divide the work: with fewer attackers nobody does some of it."""
        return 1

    def trigger(self, inputs: np.ndarray, targets: np.ndarray, classes: int | None) -> Triggered | None:
        """For backdoors: test inputs that should set the backdoor off; None for other attacks.

        Returns:
            (inputs, labels that count as success, mask (n,) bool: which rows count). Rows whose true label is
            the attacker's target don't count.
        """
        return None

    def weights(self, weights: np.ndarray) -> np.ndarray:
        """The example counts that the attackers claim, from the true ones (b,): a new array."""
        return weights.copy()

    def mask(self, previous: np.ndarray) -> np.ndarray | None:
        """(d,) bool: the coordinates that the attackers' gradients may use, from the last aggregate; None: all."""
        return None


def sent(scene: Scene, rows: np.ndarray, state: dict[str, np.ndarray] | None = None) -> Sent:
    """Float64 rows (b, d), or one (d,) that all attackers send, as new rows in the dtype of the attackers' own.

    What is too large for that dtype becomes infinite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        whole = np.broadcast_to(rows, scene.own.shape).astype(scene.own.dtype)
    return Sent(whole, state)
