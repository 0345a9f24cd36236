"""FLTrust (Cao, Fang, Liu and Gong, NDSS 2021)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule
from dure.errors import ConfigError


@dataclass(frozen=True)
class FLTrust(Rule):
    """Σ t_i (‖g‖ / ‖x_i‖) x_i / Σ t_i with the trust t_i = max(0, cos(x_i, g)) in each client.

    g is the server's own update, from a small data set that it trusts: `server=` of the call, in the form of the
    updates (a difference, or a model where `center` is given). An update of length 0 has no trust. Scores are 1 − t.

    Args:
        on_no_trust: what comes out when all trust is 0: "server", the server's own update, or "zero", no movement.
            A flag says that it happened.
    """

    on_no_trust: Literal["server", "zero"] = "server"
    citation: ClassVar[str] = "Cao et al., NDSS 2021"

    def __post_init__(self) -> None:
        if self.on_no_trust not in ("server", "zero"):
            raise ConfigError(
                f'FLTrust(on_no_trust={self.on_no_trust!r}) is not allowed: it must be "server" or "zero".'
            )

    def decide(self, rows: Rows, call: Call) -> Decision:
        if call.server is None:
            raise ConfigError(
                "FLTrust compares with the server's own update: give server=, what the server trained on data "
                "that it trusts."
            )
        own = call.server if rows.centre is None else call.server - rows.centre
        length, lengths = float(np.linalg.norm(own)), rows.lengths()
        there = (lengths > 0) & (length > 0)
        inverse = np.divide(1.0, lengths, out=np.zeros(rows.n), where=there)
        unit = own / length if length > 0 else own
        trust = np.clip(rows.along(unit) * inverse, 0.0, 1.0)
        details = {"trust": call.at_given(trust)}
        if not trust.any():
            flag = (f"no client is trusted: {self.on_no_trust} was used",)
            if self.on_no_trust == "server":
                server = call.server.astype(rows.dtype)
                return Decision(vector=server, scores=1.0 - trust, flags=flag, details=details)
            return Decision(coefficients=np.zeros(rows.n), scores=1.0 - trust, flags=flag, details=details)
        coefficients = trust / trust.sum() * length * inverse
        return Decision(coefficients=coefficients, scores=1.0 - trust, details=details)
