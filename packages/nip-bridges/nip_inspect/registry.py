"""Inspect imports this by the entry point ``inspect_ai`` of the distribution."""

from nip_inspect.play import play, plays
from nip_inspect.scoring import rewards, verdict

__all__ = ["play", "plays", "rewards", "verdict"]
