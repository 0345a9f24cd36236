"""FFA-LoRA: A stays where it began, the same for everyone; only B is trained, sent and averaged, which is exact.

Sun, Li, Li, Ding: Improving LoRA in Privacy-preserving Federated Learning, ICLR 2024.

    client k:  B_k ≈ argmin F_k(W + (α/r) B A₀)                         from B
    server:    B ← Σ p_k B_k,   so that   B A₀ = Σ p_k B_k A₀

A₀ follows from the run's seed and is sent to nobody. Noise on B stays linear in the model, the paper's second point.
"""

from dataclasses import dataclass
from typing import ClassVar

from dure.algorithms.base import Needs
from dure.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class FFALoRA(FedAvg):
    """FedAvg on the second factors of low-rank adapters (`dure.lora`). `server_lr` η_g > 0, as for FedAvg."""

    citation: ClassVar[str] = (
        "Y. Sun, Z. Li, Y. Li, B. Ding. Improving LoRA in Privacy-preserving Federated Learning. ICLR 2024."
    )
    needs: ClassVar[Needs] = Needs(adapters=True)

    @property
    def frozen_patterns(self) -> tuple[str, ...]:  # noqa: D102
        return ("*lora_A*",)
