"""What hostile clients do: poisoned updates, poisoned data, backdoors, and how well it worked."""

from dure.attacks.base import Attack, Scene, Sent

__all__ = ["Attack", "Scene", "Sent"]
