"""D-PSGD: every node takes its own step and the weighted mean of its neighbours' models.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu: Can Decentralized Algorithms Outperform Centralized Algorithms?, NeurIPS
2017; adapt-then-combine: Cattivelli, Sayed: Diffusion LMS Strategies, IEEE Trans. Signal Processing 2010; local
steps: Koloskova, Loizou, Boreiri, Jaggi, Stich: A Unified Theory of Decentralized SGD, ICML 2020.

    combine while adapting    X ← W X − η G(X)
    adapt, then combine       X ← W (X − η G(X))

With K local steps −η G(X) is what they move in all. With a constant η on different data both stop at an error
of order η, the second at a smaller one; on the complete graph the second is FedAvg.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Array, Float

from dure.decentralized.base import Method, Models, Nodes, mix


@dataclass(frozen=True)
class DPSGD(Method):
    """Gossip averaging with local steps. `adapt_then_combine`: send what the local steps found, not their start."""

    citation: ClassVar[str] = (
        "X. Lian, C. Zhang, H. Zhang, C.-J. Hsieh, W. Zhang, J. Liu. Can Decentralized Algorithms Outperform "
        "Centralized Algorithms? A Case Study for Decentralized Parallel Stochastic Gradient Descent. NeurIPS 2017."
    )
    adapt_then_combine: bool = False

    def step(self, state: Models, mixing: Float[Array, "N N"], nodes: Nodes) -> Models:  # noqa: D102
        x = state.x
        y = nodes.solve(x)
        return Models(mix(mixing, y) if self.adapt_then_combine else mix(mixing, x) + (y - x))
