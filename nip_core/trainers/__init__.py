"""Trainers: pure functions from rollouts to training examples, see `base`.

expert_iteration   conversations that went well for an agent, to imitate
malt               pairs of better and worse answers from trees of responses
grpo               an agent's own tokens with group-relative advantages
curriculum         which problems are used, for any of them
sides              rollouts as `expert_iteration` looks at them
chooser            the trainer of a method
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nip_core.parameters import Method
    from nip_core.trainers.base import Chooser


def chooser(method: "Method") -> "Chooser":
    """The trainer that makes the examples of a method."""
    # Imported here: the modules that some of them need would be loaded for nothing.
    match method:
        case "supervised":
            from nip_core.trainers.expert_iteration import choose_examples

            return choose_examples
        case "dpo":
            from nip_core.trainers.malt import choose_pairs

            return choose_pairs
        case "trajectories":
            from nip_core.trainers.grpo import choose_trajectories

            return choose_trajectories
