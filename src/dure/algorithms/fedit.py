"""FedIT: the two factors of each low-rank adapter averaged by themselves, which isn't the average of their products.

Zhang, Vahidian, Kuo, Li, Zhang, Yu, Wang, Chen: Towards Building the Federated GPT: Federated Instruction Tuning,
ICASSP 2024. It is FedAvg on adapters.

    client k:  (B_k, A_k) ≈ argmin F_k(W + (α/r) B A)                    from (B, A)
    server:    B ← Σ p_k B_k,   A ← Σ p_k A_k

    error:     Σ p_k B_k A_k − B A = Σ p_k (B_k − B)(A_k − A)            times α/r: a covariance, not zero

The model that clients would have made together is W + (α/r) Σ p_k B_k A_k. FedExLoRA puts what is missing into W.
"""

from dataclasses import dataclass
from typing import ClassVar

from dure.algorithms.base import Needs
from dure.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class FedIT(FedAvg):
    """FedAvg on low-rank adapters (`dure.lora`), inexact. `server_lr` η_g > 0, as for FedAvg."""

    citation: ClassVar[str] = (
        "J. Zhang, S. Vahidian, M. Kuo, C. Li, R. Zhang, T. Yu, G. Wang, Y. Chen. Towards Building the Federated "
        "GPT: Federated Instruction Tuning. ICASSP 2024."
    )
    needs: ClassVar[Needs] = Needs(adapters=True)
