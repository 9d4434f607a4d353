"""Choosing: from the rollouts of a run to the dataset of a group's job.

build_dataset     choose examples and commit them, with the cost of training on them
describe_dataset  a dataset in a few words, for the job's record
"""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nip_core.evaluation.figures_in_words import amount
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.prices import price_training
from nip_core.rollouts.plan import TRAIN
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.run_store.facts import DatasetFacts, SplitFacts
from nip_core.run_store.manifest import Manifest, commit, is_committed, read_manifest
from nip_core.session.imitated import find_imitated
from nip_core.session.session import Session
from nip_core.trainers import chooser
from nip_core.trainers.base import Choice, OfProblems, Rollouts
from nip_core.trainers.dataset import FILES, Dataset, write_examples
from nip_core.trainers.lines import list_questions, read_held_out


def build_dataset(session: Session, iteration: int, group: str) -> DatasetFacts:
    """Choose and commit the group's examples; leave a committed dataset as it is.

    They come from the sides of the agents that are trained in this iteration. Returns the facts in
    the dataset's manifest, its cost among them.
    """
    parameters, run, store = session.parameters, session.run, session.run.store
    if parameters.imitates(iteration):
        return _build_imitation(session, iteration, group)
    # 1. The rollouts to choose from, named by their digests: a dataset of others is refused.
    every = parameters.text_rl.fine_tune_on_all_previous_rollouts
    # Imitation has played nothing.
    earlier_iterations = range(int(parameters.imitates(0)), iteration)
    used = [*(earlier_iterations if every else ()), iteration]
    manifests = {i: read_manifest(store, run.rollouts(i, TRAIN)) for i in used}
    inputs = {
        f"rollouts/{i:04d}": SplitFacts.from_manifest(manifest).canonical_digest
        for i, manifest in manifests.items()
    }
    directory = run.dataset(iteration, group)
    if is_committed(store, directory):
        # Through `commit` all the same, which refuses a dataset that was made of other rollouts.
        return _announce(session, iteration, group, commit(store, directory, {}, inputs=inputs))
    # 2. The problems that the curriculum admits, and of their episodes the trainer's choice.
    method = parameters.method(iteration)
    agents = parameters.training_agents(group, iteration)
    rollouts: Rollouts = StoredRollouts(
        store, [manifest.directory for manifest in manifests.values()]
    )
    facts: dict[str, Any] = {}
    if parameters.curriculum.enabled:
        from nip_core.trainers.curriculum import admit

        admission = admit(parameters, agents, iteration, rollouts)
        rollouts = OfProblems(rollouts, admission.problems)
        facts["curriculum"] = admission.state
    choice = chooser(method)(session.game, group, iteration, rollouts, agents)
    # 3. Written piece by piece, and committed with the cost of training on it.
    episodes = sum(manifest.rows["episodes"] for manifest in manifests.values())
    manifest = _commit(session, iteration, group, choice, inputs, episodes, facts)
    return _announce(session, iteration, group, manifest)


def _build_imitation(session: Session, iteration: int, group: str) -> DatasetFacts:
    """Choose and commit the examples that the group's agents imitate before they are trained.

    A committed dataset stays as it is: where it came from may be gone by now.
    """
    store, directory = session.run.store, session.run.dataset(iteration, group)
    if is_committed(store, directory):
        return _announce(session, iteration, group, read_manifest(store, directory))
    agents = session.parameters.training_agents(group, iteration)
    imitated = find_imitated(session.game, store, session.problems, agents)
    choice = replace(imitated.choice, examples=imitated.examples)
    episodes = choice.counts.get("candidates", 0)
    manifest = _commit(session, iteration, group, choice, imitated.inputs, episodes, {})
    return _announce(session, iteration, group, manifest)


def _commit(
    session: Session,
    iteration: int,
    group: str,
    choice: Choice,
    inputs: Mapping[str, str],
    episodes: int,
    facts: Mapping[str, Any],
) -> Manifest:
    """Write the chosen examples, and commit them with the cost of training on them."""
    parameters, method = session.parameters, choice.method
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / FILES[method]
        writing = write_examples(
            file,
            method,
            choice.examples,
            has_reasoning=choice.has_reasoning,
            has_weights=choice.has_weights,
        )
        return commit(
            session.run.store,
            session.run.dataset(iteration, group),
            {file.name: file},
            inputs=inputs,
            rows={file.stem: writing.examples},
            extra=DatasetFacts(
                digest=writing.digest,
                examples=writing.examples,
                episodes=episodes,
                agents=list(parameters.training_agents(group, iteration)),
                method=method,
                counts=dict(choice.counts),
                **_cost(parameters, iteration, group, Dataset(file, method, file.name)),
                **facts,
            ).to_extra(),
            lease=session.lease,
        )


def _announce(session: Session, iteration: int, group: str, dataset: Manifest) -> DatasetFacts:
    """Announce a committed dataset, and return the facts of its manifest."""
    facts = DatasetFacts.from_manifest(dataset)
    examples, episodes = facts.examples, facts.episodes
    has = f"has {amount(examples, 'training example')} from {amount(episodes, 'episode')}"
    if session.parameters.imitates(iteration):
        start = session.parameters.imitated
        has = f"is to imitate {amount(examples, 'message')} of {start} first"
    session.tell(
        "dataset",
        f"iteration {iteration}: {group} {has}",
        iteration=iteration,
        group=group,
        examples=examples,
        episodes=episodes,
    )
    return facts


def _cost(
    parameters: HyperParameters, iteration: int, group: str, dataset: Dataset
) -> dict[str, Any]:
    """Return the size of the held-out part, and the tokens and price of training on the rest."""
    tokens, questions = dataset.column("tokens"), list_questions(dataset)
    out = read_held_out(parameters, dataset)
    token_counts = [n for n, question in zip(tokens, questions, strict=True) if question not in out]
    total = None if None in token_counts else sum(token_counts)
    agent = parameters.group_parameters(group)
    epochs = agent.num_epochs or parameters.rl.num_epochs
    if parameters.imitates(iteration):
        epochs = parameters.imitation_epochs
    usd = None if total is None else price_training(parameters, group, epochs * total)
    return {
        "validation_examples": len(tokens) - len(token_counts),
        "tokens": total,
        "training_usd": usd,
    }


def describe_dataset(facts: DatasetFacts, epochs: int) -> str:
    """Return the facts of a dataset's manifest, its cost among them, in a few words."""
    count, out = facts.examples, facts.validation_examples
    words = [amount(count - out, "example"), *([f"{out:,} for validation"] if out else [])]
    tokens, usd = facts.tokens, facts.training_usd
    words.append("tokens unknown" if tokens is None else amount(tokens, "token"))
    words.append(amount(epochs, "epoch"))
    if usd is not None:
        words.append(f"{usd:.2f} US dollars")
    return ", ".join(words)
