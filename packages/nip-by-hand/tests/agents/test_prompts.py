"""What the prompts say is true, complete, and in the form that the parser takes.

A wrong template stops a run before anything is spent.
"""

import os
import re
import threading
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_core.errors import SettingsError
from nip_core.game.answers.parsing import parse_response
from nip_core.game.render import Game
from nip_core.hashing import digest
from nip_core.parameters import load_parameters
from nip_core.protocols import Move, Turn
from nip_core.protocols.nip import NipProtocol
from nip_core.protocols.scales import ACCEPT, NO_DECISION, REJECT, SCALES, round_value
from nip_core.scenarios import make_scenario
from nip_core.scenarios.prompts import PLACEHOLDERS, SystemPrompts
from nip_core.session.contents import digest_templates

PLAIN = (
    *("nip", "adp", "solo_verifier", "debate", "mnip", "merlin_arthur", "multi_channel_test"),
    "refereed",
)
WRAPPED = ("nip", "adp", "debate", "mnip", "merlin_arthur")
GAMES = [(name, False) for name in PLAIN] + [(name, True) for name in WRAPPED]
VERSIONS = ("v1", "v2", "short")
QUESTION, SOLUTION = "Return x plus 1, for $5.", "def f(x):\n    return x + 2"
WORDS, TOKENS = 137, 777
OF = {"accept": ACCEPT, "reject": REJECT}


def settings_of(name, zero_knowledge=False, version="v1", **changes):
    common = {"zero_knowledge": zero_knowledge, **changes.pop("protocol_common", {})}
    limits = {"max_response_words": WORDS, "max_tokens_per_message": TOKENS}
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "interaction_protocol": name,
            "protocol_common": common,
            "code_validation": {"system_prompt_version": version},
            "agents": {"_default": limits},
            **changes,
        }
    )


def game(name, zero_knowledge=False, version="v1", **changes):
    return Game(settings_of(name, zero_knowledge, version, **changes))


@cache
def game_on(scale, name, zero_knowledge, version):
    return game(name, zero_knowledge, version, protocol_common={"verifier_decision_scale": scale})


def filled(prompts, agent, stance, seed, question=QUESTION, solution=SOLUTION):
    return prompts.filled(agent, stance, seed).fill({"question": question, "solution": solution})


def prompt(table, agent, stance=None, seed=0):
    return filled(table.prompts, agent, stance, seed)


def turns_of(table, agent, seed=0):
    """The rounds in which the agent moves."""
    protocol = table.protocol
    return [r for r in range(protocol.max_message_rounds) if agent in protocol.active(r, seed)]


def seed_for(table, agent):
    return next(seed for seed in (0, 1) if turns_of(table, agent, seed))


# Files.


def with_template(path):
    return settings_of("nip", agents={"prover": {"system_prompt_template_path": str(path)}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("$question $solution $typo", "unknown placeholders ['typo']"),
        ("$question", "lacks the placeholders ['solution']"),
        ("costs 5$ $question $solution", "'$' that starts no placeholder"),
    ],
)
def test_a_wrong_template_is_named(tmp_path, text, said):
    path = tmp_path / "prover.txt"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        Game(with_template(path))
    assert said in str(caught.value) and "agents.prover" in str(caught.value)


def test_a_missing_template_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"none\.txt can't be read"):
        Game(with_template(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("zeros", "is larger than 4194304 bytes, or has no end"),
        ("latin", "is not UTF-8 text"),
        ("loop", "Too many levels of symbolic links"),
        ("nul\0", "no name of a file: embedded null byte"),
        ("a" * 300, "File name too long"),
        (".", "Is a directory"),
    ],
)
def test_what_is_no_template_is_named(tmp_path, name, said):
    with (tmp_path / "zeros").open("wb") as file:
        file.truncate(5 << 20)
    (tmp_path / "latin").write_bytes(b"\xff")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(SettingsError) as caught:
        Game(with_template(tmp_path / name))
    assert str(caught.value).startswith(f"agents.prover: system prompt template {tmp_path}")
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_template_of_a_pipe_is_read_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    text = "$question $solution\n"
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(text,), daemon=True)
    writer.start()
    game = Game(with_template(tmp_path / "pipe"))
    assert filled(game.prompts, "prover", None, 0, "q", "s") == "q s"
    assert digest_templates(game) == {"prover": digest(text)}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_protocol_can_bring_its_templates_for_all_versions(tmp_path, version):
    class Own(NipProtocol):
        name = "own"
        template_directory = tmp_path

    parameters = settings_of("nip", version=version)
    (tmp_path / "prover.txt").write_text("Argue to $agent_stance_string: $question $solution")
    with pytest.raises(SettingsError, match=re.escape(str(tmp_path / "verifier.txt"))):
        SystemPrompts(parameters, Own(parameters), make_scenario(parameters), {})
    (tmp_path / "verifier.txt").write_text("$question $solution $decision_form")
    prompts = SystemPrompts(parameters, Own(parameters), make_scenario(parameters), {})
    assert filled(prompts, "prover", None, 0, "q", "s") == "Argue to accept: q s"


# Everything that an agent needs.


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "zero_knowledge"), GAMES)
def test_every_prompt_is_filled_in(name, zero_knowledge, version):
    for scale in SCALES:
        table = game_on(scale, name, zero_knowledge, version)
        for agent in table.protocol.agent_names:
            text = prompt(table, agent, seed=seed_for(table, agent))
            assert text.count(QUESTION) == 1 and text.count(SOLUTION) == 1
            rest = text.replace(QUESTION, "Q").replace(SOLUTION, "S")
            assert "$" not in rest and "  " not in rest and "\n\n\n" not in rest
            if version == "short":
                continue
            speaks = not table.protocol.may_decide(agent) or table.protocol.max_questions(0)
            assert (f"at most {WORDS} words" in rest) == bool(speaks)
            assert (f"at most {TOKENS} tokens" in rest) == (version == "v2")
            assert ("Reason first" in rest) == (version == "v2")


THOUGHTS = "I think about it first.\n\n"
FORM_LINE = re.compile(r"^(.*:) <(?:your )?(?:question|answer|message)>$", re.M)


def answered(table, agent, round_, seed, text):
    """The move that the game sees in an answer, in `version` v2 with reasoning before it."""
    form = table.form(agent, round_, seed, [])
    assert form.has_reasoning == (table.prompts._version == "v2")
    return parse_response((THOUGHTS if form.has_reasoning else "") + text, form), form


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "zero_knowledge"), GAMES)
def test_a_decision_as_the_prompt_shows_it_is_taken_for_one(name, zero_knowledge, version):
    for scale_name, scale in SCALES.items():
        table = game_on(scale_name, name, zero_knowledge, version)
        for agent in table.protocol.agent_names:
            text = prompt(table, agent, seed=seed_for(table, agent))
            lines = re.findall(r"^Decision: .*$", text, re.M)
            if not table.protocol.may_decide(agent):
                assert not lines
                continue
            last = turns_of(table, agent)[-1]
            quoted = re.findall('"(Decision: .*?)"', table.prompts.last_round_message)
            if version == "short" and scale_name == "accept_reject" and not lines:
                continue  # the tiny model's own templates
            assert bool(quoted) == (version != "short")
            moves = [answered(table, agent, last, 0, line)[0] for line in lines + quoted]
            shown = {move.value for move in moves}
            ends = {-1.0, 1.0} if scale.is_numeric else set(scale.values.values())
            assert shown == ends | ({0.0} if scale.is_numeric else set())
            assert all(m.decision == round_value(m.value) and not m.messages for m in moves)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "zero_knowledge"), GAMES)
def test_a_message_as_the_prompt_shows_it_reaches_its_channels(name, zero_knowledge, version):
    table = game_on("accept_reject", name, zero_knowledge, version)
    for agent, seed in product(table.protocol.agent_names, (0, 1)):
        starts = FORM_LINE.findall(prompt(table, agent, seed=seed))
        for round_ in turns_of(table, agent, seed):
            if table.protocol.may_decide(agent) and round_ == turns_of(table, agent, seed)[-1]:
                continue
            form = table.form(agent, round_, seed, [])
            several = len(form.channels) > 1
            used = [s for s in starts if (s in form.headers.values()) == several]
            assert len(used) == (len(form.channels) if several else len(used))
            text = "\n".join(f"{s} text {i}" for i, s in enumerate(used)) or "text 0"
            if not used and version == "v2":
                pytest.fail(f"{agent} is not told how its message begins")
            move, _ = answered(table, agent, round_, seed, text)
            assert tuple(move.messages) == form.channels and move.decision == NO_DECISION
            for i, start in enumerate(used):
                heard = [c for c, m in move.messages.items() if f"text {i}" in m]
                assert heard == [c for c in form.channels if form.headers.get(c, start) == start]
            assert not any("I think about it" in m for m in move.messages.values())


# Who argues for what, and what it earns them.

CLAIM = re.compile(
    r"(The expert|Both experts|All experts|Expert_\d|One of them|the other) argues? that "
    r"(you|it) should (accept|reject) the solution"
)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(("name", "zero_knowledge"), GAMES)
def test_all_prompts_agree_with_the_game_on_who_argues_for_what(name, zero_knowledge, version):
    if name == "solo_verifier":
        return
    fixed = name in ("debate", "merlin_arthur", "multi_channel_test", "refereed")
    for drawn in (None,) if fixed else (None, ACCEPT, REJECT):
        table = game(
            name,
            zero_knowledge,
            version,
            protocol_common={"randomize_prover_stance": drawn is not None},
        )
        protocol = table.protocol
        truth = {protocol.agents[p].human_name: protocol.stance(p, drawn) for p in protocol.provers}
        told = {}
        for who, _, verdict in CLAIM.findall(prompt(table, "verifier", drawn)):
            names = [who] if who in truth else list(truth)
            if name == "merlin_arthur":
                names = ["Expert_1"] if who == "One of them" else ["Expert_2"]
            told |= dict.fromkeys(names, OF[verdict])
        assert told == truth
        for prover in protocol.provers:
            seed = seed_for(table, prover)
            text, own = prompt(table, prover, drawn, seed), protocol.stance(prover, drawn)
            assert {OF[v] for v in re.findall(r"convince it to (\w+)", text)} == {own}
            assert {OF[v] for v in re.findall(r"the verifier decides to (\w+)", text)} <= {own}
            if len(truth) > 1 and name != "merlin_arthur":
                called = re.findall(r"You are (\w+),|those for (\w+)\.", text)
                assert {a or b for a, b in called} == {protocol.agents[prover].human_name}
            for who, _, verdict in CLAIM.findall(text):
                assert who != protocol.agents[prover].human_name and truth[who] == OF[verdict]
            round_ = turns_of(table, prover, seed)[0]
            reminder = table.prompts.supervisor_message(prover, round_, seed, drawn)
            assert [OF[v] for v in re.findall(r"should (\w+) the solution", reminder)] == [own]
    if name == "debate":
        assert truth == {"Expert_1": REJECT, "Expert_2": ACCEPT}
        assert "Expert_2 argues that it should accept" in prompt(table, "prover0")


@pytest.mark.parametrize("version", VERSIONS)
def test_anonymous_provers_are_named_in_no_prompt(version):
    for zero_knowledge in (False, True):
        table = game("merlin_arthur", zero_knowledge, version)
        for agent in table.protocol.agent_names:
            assert "Expert_" not in prompt(table, agent, seed=seed_for(table, agent))


@pytest.mark.parametrize(("name", "zero_knowledge"), GAMES)
def test_nobody_convinces_anybody_where_the_reward_is_shared(name, zero_knowledge):
    table = game(name, zero_knowledge, protocol_common={"shared_reward": True})
    for agent in table.protocol.agent_names:
        text = prompt(table, agent, seed=seed_for(table, agent))
        assert (
            "convince" not in text
            and "mislead" not in text
            and "argue" not in text.replace("for which verdict you argue", "")
        )


amounts = st.sampled_from((-2.0, -1.0, -0.25, 0.0, 0.25, 1.0, 3.0))


def paid(table, agent, seed, y, value, stance=None):
    """What the game pays for a decision of this value in the last round (None: no decision)."""
    protocol = table.protocol
    round_ = turns_of(table, "verifier", seed)[-1]
    move = Move({"main": "?"}) if value is None else Move(decision=round_value(value), value=value)
    turns = [Turn(round_, "verifier", "", move)]
    return protocol.judge(round_, seed, y, stance, turns).rewards[agent]


@settings(max_examples=60)
@given(
    name=st.sampled_from(("nip", "debate", "mnip", "merlin_arthur", "solo_verifier")),
    scale=st.sampled_from(("accept_reject", "likert_scale_4", "likert_scale_5", "out_of_10")),
    right=amounts,
    wrong=amounts,
    none=amounts,
    neither=st.none() | amounts,
    waiting=st.sampled_from((0.0, -0.5)),
    for_prover=amounts,
    fine=st.none() | st.sampled_from((-1.0, 0.0)),
    shared=st.booleans(),
)
def test_what_prompts_say_of_rewards_is_what_the_game_pays(
    name, scale, right, wrong, none, neither, waiting, for_prover, fine, shared
):
    table = game(
        name,
        protocol_common={
            "verifier_decision_scale": scale,
            "verifier_reward": right,
            "verifier_incorrect_penalty": wrong,
            "verifier_terminated_penalty": none,
            "verifier_neither_accept_nor_reject_reward": neither,
            "verifier_no_guess_reward": waiting,
            "prover_reward": for_prover,
            "prover_invalid_response_penalty": fine,
            "shared_reward": shared,
        },
    )
    told = prompt(table, "verifier")
    best, worst, silent = (paid(table, "verifier", 0, ACCEPT, v) for v in (1.0, -1.0, None))
    if "You are rewarded for a right decision and penalised for a wrong one" in told:
        assert best > 0 > worst and silent < 0
    else:
        numbers = [float(n) for n in re.findall(r"(?<=[ ])-?\d+(?:\.\d+)?(?=[ ,.](?!\d))", told)]
        middle = [] if scale == "accept_reject" else [paid(table, "verifier", 0, ACCEPT, 0.0)]
        stated = [best, worst, *middle, silent]
        pause = waiting and table.protocol.max_questions(0)
        assert numbers[-len(stated) - bool(pause) :] == stated + ([waiting] if pause else [])
    for prover in table.protocol.provers:
        seed = seed_for(table, prover)
        text, own = prompt(table, prover, seed=seed), table.protocol.stance(prover, None)
        won = paid(table, prover, seed, ACCEPT, 1.0 if own == ACCEPT else -1.0)
        lost = paid(table, prover, seed, ACCEPT, -1.0 if own == ACCEPT else 1.0)
        if shared:
            assert ("rewarded if the verifier's decision is right" in text) <= (best > 0)
            assert "decides to" not in text and "counts as" not in text
        else:
            assert ("You are rewarded if" in text) == (won > lost)
            assert ("You are penalised if" in text) == (won < lost)
            assert ("earns you nothing" in text) == (won == lost == 0)
        assert ("penalised for a turn" in text) == bool(fine)
        assert ("penal" in text) <= (bool(fine) or for_prover < 0)


@pytest.mark.parametrize(("simulator", "prover"), product((1.0, 0.0, -1.0), (1.0, 0.0)))
def test_what_similarity_earns_is_told_with_its_sign(simulator, prover):
    coefficients = {
        "simulator_reward_coefficient": simulator,
        "aux_prover_reward_coefficient": prover,
    }
    table = game("nip", True, zk_protocol=coefficients)
    assert ("higher your reward" in prompt(table, "simulator")) == (simulator > 0)
    assert ("more you lose" in prompt(table, "adversarial_verifier")) == (simulator > 0)
    assert ("more you gain" in prompt(table, "adversarial_verifier")) == (simulator < 0)
    assert ("higher your reward" in prompt(table, "prover")) == (simulator * prover > 0)


# Turns.


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "zero_knowledge"), GAMES)
def test_the_supervisor_counts_the_turns_and_names_the_last(name, zero_knowledge, version):
    table = game_on("accept_reject", name, zero_knowledge, version)
    prompts = table.prompts
    for agent in table.protocol.agent_names:
        seed = seed_for(table, agent)
        rounds = turns_of(table, agent, seed)
        for i, round_ in enumerate(rounds):
            text = prompts.supervisor_message(agent, round_, seed)
            assert "$" not in text and "  " not in text
            form = table.form(agent, round_, seed, [])
            quoted = re.findall('"(.*?)"', text)
            lines = [q for q in quoted if not q.startswith("Decision")]
            if lines and len(lines) == max(len(form.headers), 1):
                filled = re.sub("<.*?>", "text", "\n".join(f"{line} text" for line in lines))
                move, _ = answered(table, agent, round_, seed, filled)
                assert tuple(move.messages) == form.channels
            else:
                assert not lines and (version != "v2" or table.protocol.may_decide(agent))
            for decision in (q for q in quoted if q.startswith("Decision")):
                assert answered(table, agent, round_, seed, decision)[0].decision != NO_DECISION
            later = len(rounds) - 1 - i
            if not table.protocol.may_decide(agent):
                assert f"at most {WORDS} words" in text
            elif later == 0:
                assert prompts.last_round_message.endswith(text)
                assert ("more questions" in text) == (len(rounds) > 1)
            elif later == 1:
                assert "last turn in which you can ask" in text
            else:
                assert f"ask in {later} more turns, this one included" in text


@pytest.mark.parametrize("minimum", range(1, 8))
def test_the_verifier_is_told_which_of_its_decisions_do_not_count(minimum):
    rounds = {"max_message_rounds": 7, "min_message_rounds": minimum}
    table = game("nip", nip_protocol=rounds)
    early = [r for r in turns_of(table, "verifier") if not table.protocol.counts(r)]
    text = prompt(table, "verifier")
    turns = {0: None, 1: "first turn", 2: "first 2 turns", 3: "first 3 turns"}[len(early)]
    assert ("does not count" in text) == bool(early)
    assert turns is None or f"; a decision in your {turns} does not count." in text
    for round_ in turns_of(table, "verifier")[:-1]:
        told = table.prompts.supervisor_message("verifier", round_, 0)
        assert ("does not count yet" in told) == (round_ in early)
        assert ("or decide" in told) == (round_ not in early)


@pytest.mark.parametrize(("rounds", "said"), [(3, "1 question."), (5, "2 quest")])
def test_the_number_of_questions_is_told(rounds, said):
    table = game("nip", nip_protocol={"max_message_rounds": rounds})
    assert f"You can ask at most {said}" in prompt(table, "verifier")


ASKS_NOTHING = [
    (name, common, rounds)
    for name in ("nip", "debate", "mnip")
    for common, rounds in (
        ({"verifier_first": True}, {"max_message_rounds": 1}),
        ({"verifier_first": False}, {"max_message_rounds": 2}),
        ({"verifier_first": False}, {"max_message_rounds": 3, "sequential": True}),
    )
    if name != "nip" or "sequential" not in rounds
]


@pytest.mark.parametrize("zero_knowledge", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "common", "rounds"), ASKS_NOTHING)
def test_where_nothing_can_be_asked_nobody_is_told_of_questions(
    name, common, rounds, version, zero_knowledge
):
    changes = {"protocol_common": common, f"{name}_protocol": rounds}
    table = game(name, zero_knowledge, version, **changes)
    speakers = [agent for agent in table.protocol.agent_names if turns_of(table, agent)]
    assert "verifier" in speakers
    for agent in speakers:
        [round_] = turns_of(table, agent)
        told = [prompt(table, agent), table.prompts.supervisor_message(agent, round_, 0)]
        for text in told:
            assert not re.search(r"\b(asks?|asked|questions?)\b", text, re.IGNORECASE), text
    experts = re.search(r"\b(the experts?|Expert_1)\b", prompt(table, "verifier"), re.IGNORECASE)
    assert bool(experts) == (rounds["max_message_rounds"] > 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "zero_knowledge"), GAMES)
def test_one_word_and_one_token_are_singular(name, zero_knowledge, version):
    agents = {"_default": {"max_response_words": 1, "max_tokens_per_message": 1}}
    table = game(name, zero_knowledge, version, agents=agents)
    for agent in table.protocol.agent_names:
        seed = seed_for(table, agent)
        told = [prompt(table, agent, seed=seed)]
        told += [
            table.prompts.supervisor_message(agent, r, seed) for r in turns_of(table, agent, seed)
        ]
        for text in told:
            assert not re.search(r"\b[01] (more )?(words|tokens|turns|questions|times)\b", text)


def test_a_template_of_one_s_own_can_name_limits_of_nothing(tmp_path):
    path = tmp_path / "verifier.txt"
    path.write_text("$question $solution Ask $question_limit, $asking_limit.", encoding="utf-8")
    agents = {"verifier": {"system_prompt_template_path": str(path)}}
    table = game("nip", nip_protocol={"max_message_rounds": 1}, agents=agents)
    assert prompt(table, "verifier").endswith("Ask no questions, not at all.")


@pytest.mark.parametrize("name", ["nip", "debate", "mnip"])
def test_provers_that_open_are_told_so(name):
    rounds = {"max_message_rounds": 6}
    for first in (True, False):
        table = game(
            name,
            protocol_common={"verifier_first": first},
            **{f"{name}_protocol": {"max_message_rounds": 7} if first else rounds},
        )
        for prover in table.protocol.provers:
            assert ("nobody has asked yet" in prompt(table, prover)) == (not first)


# The docs.

PAGE = (Path(__file__).parents[4] / "docs" / "prompts.md").read_text(encoding="utf-8")


def test_the_example_in_the_docs_prints_what_the_docs_say(capsys):
    code = PAGE.split("<<'EOF'\n")[1].split("\nEOF")[0]
    exec(compile(code, "docs/prompts.md", "exec"), {})
    assert capsys.readouterr().out.strip() == PAGE.split("````\n")[1].strip()


def test_the_docs_name_every_placeholder():
    table = PAGE.split("## Placeholders")[1].split("Sentences about")[0]
    assert set(re.findall(r"`(\w+)`", table)) >= set(PLACEHOLDERS)
