"""What a method without a server is: a frozen dataclass of hyper-parameters with a few pure functions.

All nodes are written at once: X (N, d) holds one model in each row, a mixing matrix W (N, N) says what each node
takes of its neighbours' messages, and `Nodes` answers what the rows' own data say. A method never sees data.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Models(NamedTuple):
    """The nodes' models, `x` (N, d). A method may use its own tuple with an `x`."""

    x: Float[Array, "N d"]


@runtime_checkable
class Nodes(Protocol):
    """All nodes' access to their own data in one round.

    Attributes:
        keys: (N,) random keys, one for each node in this round.
    """

    keys: Any

    def solve(self, start: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """Where each node's local optimizer leads from its row of `start`, over the node's plan (K ≥ 1 steps)."""
        ...

    def gradient(self, x: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """G(X): each node's mean minibatch gradient over its plan, all at its own row of x."""
        ...


@dataclass(frozen=True)
class Method:
    """Defaults of methods without a server.

    Class attributes:
        citation: the paper.
        mixing: the matrix that is needed: "doubly stochastic", "symmetric" or "column stochastic".
        reliable: wrong as soon as one message is lost, so that `lost_messages` is refused.
    """

    citation: ClassVar[str] = ""
    mixing: ClassVar[str] = "doubly stochastic"
    reliable: ClassVar[bool] = False

    def init(self, x: Float[Array, "N d"]) -> Any:
        """The nodes' state before the first round; x (N, d) are their first models."""
        return Models(x)

    def step(self, state: Any, mixing: Float[Array, "N N"], nodes: Nodes) -> Any:
        """The state after a round of local work and one exchange over the edges of `mixing` (N, N)."""
        raise NotImplementedError(f"{type(self).__name__} has no step")

    def models(self, state: Any) -> Float[Array, "N d"]:
        """The models that the nodes would use now (N, d)."""
        return state.x  # type: ignore[no-any-return]

    def message(self, d: int) -> dict[str, Any]:
        """What a node sends to each of its neighbours in a round: tensors by name, as shapes.

        Args:
            d: number of parameters.
        """
        return {"x": tensor(d)}


def mix(mixing: Float[Array, "N N"], x: Float[Array, "N *d"]) -> Float[Array, "N *d"]:
    """W X: row i is Σ_j W_ij x_j, for x (N, d) or (N,)."""
    return jnp.matmul(mixing, x, precision="highest")


def disagreement(mixing: Float[Array, "N N"], x: Float[Array, "N d"]) -> Float[Array, "N d"]:
    """(I − W) X for rows of W that sum to 1: row i is Σ_j W_ij (x_i − x_j).

    Computed from differences to the first row, so that its rounding errors vanish with the disagreement: those of
    x − W x stay as large as x and would move the mean in every round.
    """
    apart = x - x[0]
    return apart - mix(mixing, apart)


def tensor(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """The shape of a tensor in a message."""
    return jax.ShapeDtypeStruct(shape, dtype)
