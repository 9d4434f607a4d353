"""nip's protocols as an environment of verifiers: one package, which can be published as it is.

taskset   the problems: a task is an episode that `nip play` would play
env       an episode: nip plays it, each agent is a rollout; who is trainable
seats     the one thing that differs from `nip play`: calls go over verifiers' clients
scoring   what stands of an episode in the traces: rewards, metrics, rows

The game is nip's own: prompts, rules, reading of answers, retries of invalid ones, rewards, seeds.
verifiers finds taskset, environment and harness by `__all__`: ``vf-eval nip-verifiers``.
"""

from nip_verifiers.env import ProtocolEnv, load_environment
from nip_verifiers.seats import SeatHarness
from nip_verifiers.taskset import ProblemTaskset

__all__ = ["ProblemTaskset", "ProtocolEnv", "SeatHarness", "load_environment"]
