"""The task `nip_inspect/play`: any protocol and scenario of nip, played by Inspect's models.

play   the task: a sample is a problem, an epoch a play of it, a role an agent
plays  its solver: an episode by nip's own engine, whose calls go over Inspect's models

An agent plays with the model of the role that has its name (``--model-role prover=...``), or with
the model of the evaluation. Requests, seeds and rewards are those that `nip play` has with the same
settings. An episode that was interrupted is begun anew; Inspect's ``--cache`` keeps its answers.
"""

import site
from dataclasses import replace
from pathlib import Path
from typing import Any

from inspect_ai import Epochs, Task, task
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import transcript
from inspect_ai.model import get_model
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import span

import nip_core
from nip_core.errors import NipError
from nip_core.evaluation.episode_transcripts import DECISION_WORDS
from nip_core.evaluation.spread import shared_text
from nip_core.game.answer_rows import place_of
from nip_core.library.games import join_problem_text
from nip_core.library.played_games import make_context
from nip_core.rollouts.episode import play_episode
from nip_core.rollouts.plan import EpisodeSpec
from nip_core.rollouts.storage.table_rows import Generation, ResultRow, recorded_calls, stored_row
from nip_core.scenarios import NO_LABEL
from nip_inspect.model_calls import RoleModels
from nip_inspect.scoring import EPISODE, GENERATIONS, QUESTION, rewards, verdict
from nip_inspect.settings import Plan, game_parameters, plan_of
from nip_inspect.transcript import conversation, moves_of, output_of, remarks

_TEXTS = ("question", "solution", "columns")  # which stand in the sample


def _name() -> str:
    """The task's name. Inspect puts the package's before it, but not where nip is installed
    editable, as the distribution has another name."""
    places = [*site.getsitepackages(), site.getusersitepackages()]
    is_packed = any(Path(__file__).is_relative_to(place) for place in places)
    return "play" if is_packed else "nip_inspect/play"


@task(name=_name())
def play(
    config: str | None = None,
    protocol: str | None = None,
    scenario: str | None = None,
    dataset: str | None = None,
    split: str = "test",
    seed: int | None = None,
    settings: str | list[str] | None = None,
) -> Task:
    """A protocol of nip on the problems of a split.

    Args:
        config: A YAML configuration, or the name of a bundled one, as for `nip play`.
        protocol: nip, adp, debate, merlin_arthur, mnip, refereed, solo_verifier,
            multi_channel_test, or a class of one's own: path/to/file.py:Class or
            package.module:Class.
        scenario: code_validation, arithmetic, bags, chain, graphs, reading, solutions, or a
            class of one's own.
        dataset: A dataset of the scenario's own (the first unless given), a file or a directory.
        split: train, validation or test.
        seed: Every other seed derives from it, 0 to 2147483647.
        settings: Further settings, each as a.b=c, such as nip_protocol.max_message_rounds=5.
    """
    try:
        parameters = game_parameters(config, protocol, scenario, dataset, seed, settings)
        plan = plan_of(parameters.to_dict(), split)
    except NipError as error:
        raise PrerequisiteError(f"nip: {error}") from None
    return Task(
        dataset=MemoryDataset(
            [_sample(plan, name) for name in plan.samples],
            name=f"{parameters.dataset} ({parameters.scenario}), {split}",
        ),
        solver=plays(parameters.to_dict(), split),
        scorer=[verdict(), rewards()],
        epochs=Epochs(plan.epochs) if plan.epochs > 1 else None,
        display_name=f"{parameters.interaction_protocol} on {parameters.dataset}",
        metadata={"nip_version": nip_core.__version__},
    )


def _sample(plan: Plan, name: str) -> Sample:
    problem, scenario = plan.samples[name].problem, plan.game.scenario
    return Sample(
        id=name,
        input=join_problem_text(plan.game, problem.texts),
        target="" if problem.y == NO_LABEL else DECISION_WORDS[problem.y],
        metadata={
            "problem": problem.id,
            "question_id": problem.question_id,
            QUESTION: shared_text(problem.question_id, problem.columns, scenario.split_by),
            "y": problem.y,
            "difficulty": problem.difficulty,
            "mutation": problem.mutation,
        },
    )


@solver
def plays(settings: dict[str, Any], split: str) -> Solver:
    """Play an episode with these settings, those of `HyperParameters.to_dict`."""
    plan = plan_of(settings, split)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        game, spec = plan.game, plan.spec(str(state.sample_id), state.epoch)
        # 1. Who plays with which model.
        models = {name: get_model(role=name) for name in game.parameters.model_agents}
        names = {name: str(model) for name, model in models.items()}
        # 2. The episode, as nip plays it.
        log = SampleTranscript(plan, spec)
        context = make_context(game, names, RoleModels(models), log)
        [row] = (await play_episode(spec, context)).episodes
        # 3. Its record in the sample.
        rows = log.in_order()
        state.messages += conversation(game, rows, moves_of(game, spec.seed, rows))
        state.output = output_of(rows)
        stored_episode = stored_row(row)
        state.store.set(EPISODE, {k: v for k, v in stored_episode.items() if k not in _TEXTS})
        state.store.set(GENERATIONS, [stored_row(generation) for generation in rows])
        return state

    return solve


class SampleTranscript:
    """The journal of an episode that Inspect plays: answers stand in the sample's transcript."""

    def __init__(self, plan: Plan, spec: EpisodeSpec) -> None:
        self._game, self._seed = plan.game, spec.seed
        self._rows: list[Generation] = []

    async def append(self, record: dict[str, Any]) -> None:
        """Keep a record, and say in the transcript what came of the answer."""
        if "label" in record:
            transcript().info(record["label"], source="label")
            return
        if "tool_result" in record:
            result = ResultRow(**record["tool_result"])
            [place] = [i for i, row in enumerate(self._rows) if row.key == result.key]
            row = self._rows[place] = replace(self._rows[place], tool_result=result.text)
            [remark] = remarks(self._game, row, {})
            transcript().info(remark.data, source=remark.source)
            return
        [call] = recorded_calls([record], "the episode").values()
        row = call.generation
        self._rows.append(row)
        moves = moves_of(self._game, self._seed, self._rows)
        for remark in remarks(self._game, row, moves):
            if remark.channel is None:
                transcript().info(remark.data, source=remark.source)
                continue
            async with span(remark.channel, type="channel"):
                transcript().info(remark.data, source=remark.source)

    def in_order(self) -> list[Generation]:
        """The generations in the order of play."""
        place = {name: k for k, name in enumerate(self._game.protocol.agent_names)}
        return sorted(self._rows, key=lambda row: place_of(row).order(place.__getitem__))
