"""The load of one episode by the rules of its game: calls, tokens read, written and trained.

Load, Loads           of an agent, of all agents with a model
Assumed               how long messages are taken to be, and the like: AT_MOST, EXPECTED
count_first_prompts   the tokens of an agent's first prompt, counted where its tokenizer is here
reckon_episode_loads  of an episode, or of a tree of responses
reckon_tree_loads     of the trees that an iteration may play
reckon_choice_loads   of the tree of a game in which messages are chosen, at most;
                      reckon_choice_means, as it is expected
average_loads         of several loads that are equally likely

Of a model's messages nothing is known here but how long they may be; `nip_core.costs.taken` has the
loads of earlier runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean

from nip_base.formats.token_counts import count_tokens
from nip_core.game.render import Game, make_situation
from nip_core.models import locate_model
from nip_core.parameters import HyperParameters, Method
from nip_core.rollouts.branching import Branching
from nip_core.rollouts.plan import episode_spec
from nip_core.scenarios import Problem
from nip_core.tools import MOST_CHARACTERS, ToolUse

BYTES_PER_TOKEN = 4
_MESSAGE_TOKENS = 4  # that a chat template adds to a message, about
TOOL_TOKENS = 300  # of the field `tools`, with a template's words about calls
_RESULT_TOKENS = MOST_CHARACTERS // BYTES_PER_TOKEN + _MESSAGE_TOKENS  # of a tool, at most
_RANDOM_TOKENS = 10  # of a message by an agent without a model
_TREES = 128  # looked at in each iteration
_COUNTED = 16  # problems of a split that have counted prompts


@dataclass
class Load:
    """Of one agent in one episode or tree."""

    calls: float = 0
    prompt_tokens: float = 0
    completion_tokens: float = 0
    conversation_tokens: float = 0  # its whole chat at the end, as in one training example
    pair_tokens: float = 0  # of all pairs of answers at the nodes that branch, prompts included

    def scaled(self, guessed: "Load", measured_load: "Load") -> "Load":
        """Return it with as much more, or less, as `measured_load` has than was `guessed`.

        A number of calls that is 0 is not known.
        """
        prompt, completion = (
            b / a if a else 1.0
            for a, b in (
                (guessed.prompt_tokens, measured_load.prompt_tokens),
                (guessed.completion_tokens, measured_load.completion_tokens),
            )
        )
        calls = (
            measured_load.calls / guessed.calls if guessed.calls and measured_load.calls else 1.0
        )
        return Load(
            self.calls * calls,
            self.prompt_tokens * prompt,
            self.completion_tokens * completion,
            self.conversation_tokens * prompt,
            self.pair_tokens * prompt,
        )

    def trained_tokens(self, method: Method) -> float:
        """Count the tokens read in training on all messages of an agent."""
        match method:
            case "dpo":
                return self.pair_tokens
            case "trajectories":
                return self.prompt_tokens + self.completion_tokens
        return self.conversation_tokens


Loads = Mapping[str, Load]
"""By agent with a model."""


@dataclass(frozen=True)
class Assumed:
    """The assumptions by which the tokens of an episode are counted."""

    share_of_limit: float  # that a message is long
    share_chosen: float  # of the episodes, for training by examples that are chosen
    is_bound: bool  # count the dearest episode, played to its last round, not the mean


AT_MOST = Assumed(1.0, 1.0, is_bound=True)
EXPECTED = Assumed(0.5, 0.5, is_bound=False)


def count_all_tokens(loads: Loads) -> float:
    """Return what all agents read and write."""
    return sum(load.completion_tokens + load.prompt_tokens for load in loads.values())


def average_loads(possible: Sequence[Loads]) -> Loads:
    """Return the mean of loads of the same agents."""
    mean = {}
    for agent in possible[0]:
        numbers = zip(*(_numbers(loads[agent]) for loads in possible), strict=True)
        mean[agent] = Load(*map(fmean, numbers))
    return mean


def _numbers(load: Load) -> tuple[float, ...]:
    return tuple(vars(load).values())


def count_first_prompts(
    game: Game, problems: Sequence[Problem]
) -> tuple[dict[str, float], frozenset[str]]:
    """Return by agent the mean tokens of its first prompt, and the agents with counted prompts.

    Prompts are counted where the tokenizer of the agent's model is on this machine; nothing is
    downloaded. Other prompts are taken to have a token for each `BYTES_PER_TOKEN` bytes.
    """
    parameters = game.parameters
    some = problems[:: max(1, len(problems) // _COUNTED)]
    stance = 1 if parameters.protocol_common.randomize_prover_stance else None
    # Announcements before later turns are counted as if they stood in the first prompt.
    last = game.protocol.max_message_rounds - 1 if game.announces else 0
    tokens, counted_agents = {}, set()
    for name, agent in parameters.model_agents.items():
        chats = [
            game.render(name, make_situation(problem, stance, 0), [], last) for problem in some
        ]
        texts = ["\n".join(message["content"] for message in chat) for chat in chats]
        has_weights = agent.provider.names_weights
        has_weights &= parameters.lm_server.capabilities.has_weights
        counts = count_tokens(locate_model(agent.model_name), texts) if has_weights else None
        if counts is None:
            counts = [len(text.encode()) // BYTES_PER_TOKEN for text in texts]
        else:
            counted_agents.add(name)
        tokens[name] = fmean(counts) + _MESSAGE_TOKENS * fmean(map(len, chats)) if counts else 0.0
        if game.native_tool(name) is not None:
            tokens[name] += TOOL_TOKENS
    return tokens, frozenset(counted_agents)


def reckon_episode_loads(
    game: Game,
    seed: int,
    prompts: Mapping[str, float],
    assumed: Assumed,
    shape: Sequence[float] | None = None,
    several: Mapping[str, Sequence[float]] | None = None,
) -> Loads:
    """By agent, in an episode of this seed; or in a tree, `shape` being the children by round.

    `prompts` has the tokens of each agent's first prompt; `several`, by agent and round, how many
    answers are written at a node, where they are not as many as it has children.
    """
    protocol, agents = game.protocol, game.parameters.model_agents
    loads = {agent: Load(conversation_tokens=prompts[agent]) for agent in agents}
    answers = {a: round(assumed.share_of_limit * game.parameters.max_tokens(a)) for a in agents}
    nodes, used = 1.0, dict.fromkeys(agents, 0.0)
    for round_ in range(_rounds(game, seed, assumed)):
        active = protocol.active(round_, seed)
        children = 1 if shape is None else shape[round_]
        for agent in active:
            if agent in loads:  # a random agent costs nothing
                load, answer = loads[agent], answers[agent]
                times = children if several is None else several[agent][round_]
                if (tool := game.tools.get(agent)) is not None:
                    # Each child of a node goes on from an answer of its own.
                    used[agent] += _add_calls(
                        load, tool, used[agent], assumed, nodes * children, answer
                    )
                load.calls += nodes
                load.prompt_tokens += nodes * load.conversation_tokens
                load.completion_tokens += nodes * times * answer
                if children > 1:
                    load.pair_tokens += nodes * 2 * (load.conversation_tokens + answer)
        nodes *= children
        for agent, channels in active.items():
            tokens = answers.get(agent, _RANDOM_TOKENS)
            for reader, load in loads.items():
                if reader == agent or set(channels) & set(protocol.visible_channels(reader)):
                    load.conversation_tokens += tokens
    return loads


def _add_calls(
    load: Load, tool: ToolUse, earlier: float, assumed: Assumed, nodes: float, answer: int
) -> float:
    """Add the calls of a tool in a turn of each node; return how many they are.

    `earlier` came before in the episode. At most, each turn has a call beyond the limit, too.
    """
    rest = tool.per_turn if tool.per_episode is None else max(0.0, tool.per_episode - earlier)
    calls = assumed.share_of_limit * min(tool.per_turn, rest)
    answers, grown = calls + assumed.is_bound, answer + _RESULT_TOKENS
    load.calls += nodes * answers
    load.prompt_tokens += nodes * answers * (load.conversation_tokens + answers / 2 * grown)
    load.completion_tokens += nodes * answers * answer
    load.conversation_tokens += answers * grown
    return calls


def _rounds(game: Game, seed: int, assumed: Assumed) -> int:
    """The rounds of an episode: all, or those until the middle one of its possible ends."""
    protocol = game.protocol
    last = protocol.max_message_rounds - 1
    if assumed.is_bound:
        return last + 1
    first = protocol.min_message_rounds - 1
    ends = [r for r in range(first, last) if "verifier" in protocol.active(r, seed)]
    ends.append(last)
    return ends[len(ends) // 2] + 1


def reckon_choice_loads(game: Game, seed: int, plain: Loads) -> Loads:
    """By agent, in the tree of a game in which messages are chosen, as the choice itself says."""
    parameters, protocol = game.parameters, game.protocol
    assert parameters.choice is not None  # messages are chosen
    provers = set(parameters.choosing_provers)
    turns = sum(
        not provers.isdisjoint(protocol.active(r, seed)) for r in range(protocol.max_message_rounds)
    )
    choice_load = parameters.choice.load(turns)
    loads = {}
    for agent, load in plain.items():
        times = choice_load.provers if agent in provers else choice_load.others
        loads[agent] = replace(
            load,
            calls=load.calls * times,
            prompt_tokens=load.prompt_tokens * times,
            completion_tokens=load.completion_tokens * times,
        )
    return loads


def reckon_choice_means(
    game: Game,
    seed: int,
    prompts: Mapping[str, float],
    assumed: Assumed,
    repeated: float | None,
    *,
    has_own_calls: bool,
) -> Loads:
    """Give by agent the expected load of such a tree.

    Messages are asked for by one call, and only those that differ are played on. `repeated` is how
    likely two of them are the same, as if so many were all equally likely; None: no two are.
    `has_own_calls` says whether each continuation is a call of its own (see `Scenario.draw_again`).
    """
    parameters, protocol = game.parameters, game.protocol
    choice, provers = parameters.choice, set(parameters.choosing_provers)
    assert choice is not None  # messages are chosen
    candidates = choice.counts

    def distinct(n: float) -> float:
        return n if not repeated else (1 - (1 - repeated) ** n) / repeated

    # The best of the first n is seldom the best of four times as many, unless they say the same.
    ways_on = 1.0 + sum(
        1 - distinct(fewer) / distinct(more) for fewer, more in pairwise(candidates)
    )
    messages_per_call = fmean(candidates[-max(1, round(ways_on)) :])
    at_once = 1 if has_own_calls else max(1, choice.continuations)
    # By round: nodes from which the game goes on, calls that play a message on, and games that do.
    ways, fresh, judging = 1.0, 0.0, 0.0
    shape: list[float] = []
    several: dict[str, list[float]] = {agent: [] for agent in parameters.model_agents}
    for round_ in range(protocol.max_message_rounds):
        nodes = ways + fresh + judging
        choosing = provers & set(protocol.active(round_, seed))
        messages = (messages_per_call if judging else float(candidates[-1])) if choosing else 1.0
        continued = fresh * at_once + judging
        for agent, answers in several.items():
            own_messages = messages if agent in choosing else 1.0
            answers.append((ways * own_messages + continued) / nodes)
        differ = distinct(messages) if choosing else 1.0
        fresh = ways * differ * (differ > 1) * choice.continuations / at_once
        judging = continued
        ways *= ways_on if choosing else 1.0
        shape.append((ways + fresh + judging) / nodes)
    return reckon_episode_loads(game, seed, prompts, assumed, shape, several)


def reckon_tree_loads(
    game: Game,
    problems: Sequence[Problem],
    iteration: int,
    prompts: Mapping[str, float],
    assumed: Assumed,
) -> list[Loads]:
    """Give the loads of some possible trees of the iteration."""
    parameters = game.parameters
    branching = Branching(parameters, game.protocol, iteration)
    trees = []
    for problem in problems[:_TREES]:
        spec = episode_spec(parameters, "train", iteration, problem, 0)
        shape = branching.shape(spec)
        trees.append(reckon_episode_loads(game, spec.seed, prompts, assumed, shape))
    return trees


def reckon_training_tokens(
    parameters: HyperParameters, iteration: int, loads: Loads
) -> dict[str, float]:
    """By group, in the job of the iteration, for each episode or tree of an iteration."""
    method = parameters.method(iteration)
    return {
        group: count_passes(parameters, iteration, group)
        * sum(loads[a].trained_tokens(method) for a in parameters.training_agents(group, iteration))
        for group in parameters.trainable_groups
    }


def count_read_examples(parameters: HyperParameters, group: str, episodes: int) -> list[int | None]:
    """Count the examples of each job of a group, for every pass: an upper bound.

    None for a job on pairs, which follow from the branches of trees.
    """
    counts = list[int | None]()
    for iteration in range(parameters.rl.num_iterations):
        if not (agents := len(parameters.training_agents(group, iteration))):
            continue
        played = count_imitated(parameters) if parameters.imitates(iteration) else episodes
        passes = count_passes(parameters, iteration, group)
        is_pairs = parameters.method(iteration) == "dpo"
        counts.append(None if is_pairs else round(played * agents * passes))
    return counts


def count_imitated(parameters: HyperParameters) -> int:
    """Count the messages that an agent imitates at most: as set, or all lines of the file."""
    most, file = parameters.most_imitated, Path(parameters.imitated_file or "")
    try:
        if not file.is_file():
            return most
        state = file.stat()
        return _count_lines(file, most, state.st_mtime_ns, state.st_size)
    except OSError:  # the run's own look at the file says why
        return most


@lru_cache(maxsize=8)
def _count_lines(file: Path, most: int, *state: int) -> int:
    """Count the lines with a text, `most` at most; once for each `state` of the file."""
    with file.open("rb") as lines:
        return sum(1 for _ in islice(filter(bytes.strip, lines), most))


def count_passes(parameters: HyperParameters, iteration: int, group: str) -> float:
    """Count how often the group's job reads an iteration's number of episodes.

    Once in every
    epoch, for every iteration that it trains on.
    """
    if parameters.imitates(iteration):
        return parameters.imitation_epochs
    iterations = 1
    if parameters.text_rl.fine_tune_on_all_previous_rollouts:
        unused = int(parameters.imitates(0))
        if parameters.method(iteration) == "dpo":  # episodes without branches give no pairs
            unused = max(unused, parameters.pure_text_malt.num_initial_ei_iterations)
        iterations += iteration - unused
    epochs = parameters.group_parameters(group).num_epochs or parameters.rl.num_epochs
    return iterations * epochs
