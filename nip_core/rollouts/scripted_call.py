"""A turn that a script writes in the place of a prover's model.

find_attack_script     the script of an attack
find_scripts           by agent, the script that writes in all of its turns
find_opponent_scripts  by opponent, the scripts that play in a share of the training
make_scripted_players  the agents for which a script writes
make_writing_player    an agent that says one text, for an attack that writes
ask_script             a script's answer, as a call without a model
check_script           try a script on the problems of an attack before anything is paid for

Scripts are called one at a time, in a thread of their own: they need not be safe to call at once,
and a slow one holds nothing else up.
"""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache

from nip_core.attacks import find_attack_file
from nip_core.errors import SettingsError, StageError
from nip_core.game.answer_rows import AnswerPlace
from nip_core.game.answers.decisions import InvalidResponse
from nip_core.game.answers.parsing import AnswerForm
from nip_core.game.render import ChatMessage, Game, Situation, make_situation
from nip_core.parameters.blocks.opponents import OpponentRun
from nip_core.parameters.checks import list_scripted
from nip_core.rollouts.branching import make_child
from nip_core.rollouts.client.completions import ChatAnswer
from nip_core.rollouts.model_call import Call, Player, judge_answer
from nip_core.rollouts.plan import EpisodeSpec
from nip_core.scenarios.scripts import (
    LoadedScript,
    ScriptedTurn,
    call_script,
    describe_turn,
    digest_file,
    load_script,
    name_as_model,
)

TRIED = 16  # problems of a split on which a script is tried that writes in training
_THREAD = ThreadPoolExecutor(max_workers=1, thread_name_prefix="script")


def find_attack_script(game: Game) -> LoadedScript | None:
    """Load the script of an attack; None for an attack without. Raises ValueError."""
    name = game.parameters.attack.script
    return None if name is None else load_script(game.scenario, name)


def find_scripts(game: Game) -> dict[str, LoadedScript]:
    """Load by agent the script of an attack, or of its own settings. Raises ValueError."""
    agents, of_attack = game.parameters.prompted_agents, find_attack_script(game)
    scripts = {}
    for agent in list_scripted(game.parameters):
        if (name := agents[agent].script) is not None:
            scripts[agent] = load_script(game.scenario, name, f"agents.{agent}.script")
        elif of_attack is not None:
            scripts[agent] = of_attack
    return scripts


def find_opponent_scripts(game: Game) -> dict[str, LoadedScript]:
    """Load by opponent the scripts that play in training. Raises ValueError."""
    scripts = (
        (entry.name, _load_opponent(game, entry)) for entry in game.parameters.opponents.runs
    )
    return {name: script for name, script in scripts if script is not None}


def _load_opponent(game: Game, entry: OpponentRun) -> LoadedScript | None:
    """Load the script of an opponent; None for one that plays with models.

    Raises ValueError, also for a file that has changed since its run attacked, or this one began.
    """
    opponent = entry.found
    if opponent is None or opponent.script is None:
        return None
    setting = f"opponents.runs: {entry.name}"
    try:
        script = load_script(game.scenario, entry.script or opponent.script, setting)
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None
    if script.digest != opponent.script_digest:
        raise ValueError(
            f"{setting}: {script.file} is not what it was when "
            + (
                "this run began; bring it back, or start anew, under another name"
                if entry.run is None
                else "that run attacked; bring it back, or attack with it anew, under another name"
            )
        )
    return script


def make_scripted_players(game: Game) -> dict[str, Player]:
    """Make a player for each agent whose messages a script writes."""
    agents = game.parameters.prompted_agents
    return {
        agent: Player(agent, script.model, None, agents[agent], script=script)
        for agent, script in find_scripts(game).items()
    }


def make_writing_player(game: Game, agent: str, text: str) -> Player:
    """Make a player that says a text by the attack of the settings."""
    attack_name = game.parameters.attack.by
    script = LoadedScript(
        attack_name, lambda _: text, *_find_source(attack_name), setting="attack.by"
    )
    settings = game.parameters.prompted_agents[agent]
    return Player(agent, script.model, None, settings, script=script)


def name_writing_model(game: Game) -> str:
    """Name an attack that writes messages itself, in the place of a model's name."""
    attack_name = game.parameters.attack.by
    return name_as_model(attack_name, _find_source(attack_name)[1])


@cache
def _find_source(attack_name: str) -> tuple[str, str | None]:
    """Find the file of an attack of the user's, and its digest."""
    file = find_attack_file(attack_name)
    return ("", None) if file is None else (str(file), digest_file(file))


async def ask_script(
    game: Game,
    player: Player,
    spec: EpisodeSpec,
    round_: int,
    chat: Sequence[ChatMessage],
    form: AnswerForm,
    seed: int,
) -> Call:
    """Let the script of `player` write its answer to `chat`.

    Raises StageError that names script, question and remedy, for an error or a wrong result of the
    script.
    """
    script, started = player.script, datetime.now(UTC)
    assert script is not None  # the player is scripted
    situation = make_situation(spec.problem, spec.stance, spec.seed)
    turn = _make_turn(game, player.agent, situation, round_, chat, seed)
    loop, question = asyncio.get_running_loop(), spec.problem.id
    try:
        text = await loop.run_in_executor(_THREAD, _write, script, turn, question, form)
    except ValueError as error:
        raise StageError(
            f"{error}, and start anew under another name, as a changed script is another attack"
        ) from error
    return Call(player, form, started, [_answer(text, player.model)])


def check_script(
    game: Game, script: LoadedScript, specs: Iterable[EpisodeSpec], scripted: Sequence[str]
) -> None:
    """Let the script write the first messages of `specs`, where no agent speaks before.

    It writes for the agents `scripted`. Raises SettingsError that names script, question and
    remedy.
    """
    base_seed = game.parameters.seed
    for spec in specs:
        situation = make_situation(spec.problem, spec.stance, spec.seed)
        movers = game.protocol.movers(0, spec.seed, ())
        for agent in (agent for agent in scripted if agent in movers):
            chat = game.render(agent, situation, (), 0)
            seed = make_child(spec, 0).generation_seed(base_seed, AnswerPlace(0, agent))
            turn = _make_turn(game, agent, situation, 0, chat, seed)
            try:
                _write(script, turn, spec.problem.id, game.form(agent, 0, spec.seed, ()))
            except ValueError as error:
                raise SettingsError(str(error)) from error


def _make_turn(
    game: Game,
    agent: str,
    situation: Situation,
    round_: int,
    chat: Sequence[ChatMessage],
    seed: int,
) -> ScriptedTurn:
    return ScriptedTurn(
        agent=agent,
        argues_for=game.protocol.stance(agent, situation.stance),
        round=round_,
        texts=game.seen_by_prover(situation),
        chat=tuple(dict(message) for message in chat),
        seed=seed,
    )


def _write(script: LoadedScript, turn: ScriptedTurn, question: str, form: AnswerForm) -> str:
    """Call the script, and give its message the form of an answer. Raises ValueError."""
    text = call_script(script, turn, question)
    if len(form.channels) > 1:  # each of them has a part of its own, with the same message
        text = "\n".join(f"{form.headers[channel]} {text}" for channel in form.channels)
    try:
        judge_answer(_answer(text, script.model), form, 0)
    except InvalidResponse as invalid:
        raise ValueError(
            f"{describe_turn(script, turn, question)} wrote no valid message: {invalid.reason} "
            f"(got {text!r:.80}, {script.file}); mend it"
        ) from None
    return text


def _answer(text: str, model: str) -> ChatAnswer:
    return ChatAnswer(text, "stop", model, 0, 0, 0, 0.0)
