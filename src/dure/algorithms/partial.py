"""Partial sharing: some tensors travel, the others never leave the client.

FedPer (Arivazhagan et al., 2019), LG-FedAvg (Liang et al., 2020), FedRep (Collins et al., ICML 2021), FedBN (Li
et al., ICLR 2021), FedBABU (Oh, Kim, Yun, ICLR 2022). s: shared part, h_k: the client's private part:

    FedPer, LG-FedAvg, FedBN   (s_k, h_k) ≈ argmin F_k(s, h)               together, from (s, h_k)
    FedRep                     h_k ≈ argmin F_k(s, h), then s_k ≈ argmin F_k(s, h_k)
    FedBABU                    s_k ≈ argmin F_k(s, h₀)                     h₀: the initial head, never trained
    server:                    s ← s + Σ p_k (s_k − s)

They differ in which tensors are private: FedPer and FedRep the head, LG-FedAvg the representation, FedBN the
batch normalisation with its statistics. FedBABU's clients train everything before they use the model.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo, Server, Update


@dataclass(frozen=True)
class FedPer(Algorithm):
    """FedPer: a shared body under each client's own head, trained together.

    `private`: name patterns of the tensors that stay, such as ("dense3",).
    """

    citation: ClassVar[str] = (
        "M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary. Federated Learning with Personalization "
        "Layers. arXiv:1912.00818, 2019."
    )
    needs: ClassVar[Needs] = Needs(personal=True)
    own: ClassVar[tuple[str, ...]] = ("*",)
    private: tuple[str, ...]

    def __post_init__(self) -> None:
        check.patterns(self, "private")

    @property
    def private_patterns(self) -> tuple[str, ...]:  # noqa: D102
        return self.private

    def init(self, w: Float[Array, " s"]) -> Server:  # noqa: D102
        return Server(w)

    def init_client(self, w: Float[Array, " p"]) -> Array:  # noqa: D102
        return w

    def local(self, server: Server, own: Array, oracle: Oracle) -> tuple[Update, Array]:  # noqa: D102
        y = oracle.solve(oracle.join(server.w, own)).w
        return Update(oracle.shared(y) - server.w), oracle.private(y)

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        return Server(server.w + mean.delta)

    def personal(self, server: Server, own: Array, oracle: Oracle) -> Array:  # noqa: D102
        return oracle.join(server.w, own)


@dataclass(frozen=True)
class LGFedAvg(FedPer):
    """LG-FedAvg: a private representation under a shared head. `private`: the representation's tensors."""

    citation: ClassVar[str] = (
        "P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov, L.-P. Morency. "
        "Think Locally, Act Globally: Federated Learning with Local and Global Representations. "
        "arXiv:2001.01523, 2020."
    )


@dataclass(frozen=True)
class FedBN(FedPer):
    """FedBN: batch normalisation stays, with its statistics. `private`: its tensors' name patterns."""

    citation: ClassVar[str] = (
        "X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou. FedBN: Federated Learning on Non-IID Features via Local "
        "Batch Normalization. ICLR 2021."
    )
    private: tuple[str, ...] = ("*[Nn]orm*",)

    @property
    def private_buffers(self) -> bool:  # noqa: D102
        return True


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedRep: each client's own head is trained first, then the shared body under it.

    `private`: the head's tensors; `head_passes`: times the client's plan is gone through for it.
    """

    citation: ClassVar[str] = (
        "L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. Exploiting Shared Representations for Personalized "
        "Federated Learning. ICML 2021."
    )
    head_passes: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check.count(self, "head_passes")

    def local(self, server: Server, own: Array, oracle: Oracle) -> tuple[Update, Array]:  # noqa: D102
        start = oracle.join(server.w, own)
        head = oracle.solve(start, train="private", repeats=self.head_passes).w
        body = oracle.solve(head, train="shared").w
        return Update(oracle.shared(body) - server.w), oracle.private(head)


@dataclass(frozen=True)
class FedBABU(FedPer):
    """FedBABU: the head stays at its start while the body is learnt. `private`: the head's tensors."""

    citation: ClassVar[str] = (
        "J. Oh, S. Kim, S.-Y. Yun. FedBABU: Towards Enhanced Representation for Federated Image Classification. "
        "ICLR 2022."
    )

    def local(self, server: Server, own: Array, oracle: Oracle) -> tuple[Update, Array]:  # noqa: D102
        body = oracle.solve(oracle.join(server.w, own), train="shared").w
        return Update(oracle.shared(body) - server.w), own

    def personal(self, server: Server, own: Array, oracle: Oracle) -> Array:  # noqa: D102
        return oracle.solve(oracle.join(server.w, own)).w
