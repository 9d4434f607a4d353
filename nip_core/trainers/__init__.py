"""Trainers: from rollouts to the lines that are trained on, in this order.

base        rollouts, and the examples that are chosen from them
curriculum  which problems' rollouts are chosen from, for any trainer
chooser     the trainer of a method, a pure function from rollouts to examples:
              expert_iteration   conversations that went well for an agent, to imitate
              malt               pairs of better and worse answers from trees of responses
              grpo               an agent's own tokens with group-relative advantages
conversations  an agent's side of an episode, as it was asked, for expert iteration
episodes    rollouts as these look at them
dataset     examples -> a Parquet file with their lineage; the source of all formats;
            row_digests: its digest
lines       rows of a dataset -> the JSONL file of a job, checked by its receiver's rules

Who calls them in a run is `nip_core.stages.choosing`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nip_core.parameters import Method
    from nip_core.trainers.base import Chooser


def chooser(method: "Method") -> "Chooser":
    """Return the trainer of a method."""
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
