"""The sample of transcripts and its Markdown."""

import pyarrow as pa

from nip_core.evaluation.episode_transcripts import (
    judged_words,
    reasons,
    transcripts_from_tables,
)
from nip_core.evaluation.transcripts_markdown import transcripts_markdown
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.protocols import make_protocol


def _batch(episodes_of, iterations=(0,), problems=20):
    return episodes_of(
        *[
            {"key": f"{k}-{i}", "iteration": k, "problem": f"p{i}"}
            for k in iterations
            for i in range(problems)
        ]
    )


def test_the_sample_is_bounded_per_iteration_and_split_and_shows_the_same_problems(
    episodes_of, generations_of
) -> None:
    episodes = _batch(episodes_of, iterations=(0, 1))
    found = transcripts_from_tables(episodes, generations_of(), 5, 0)
    problems = {k: [t.problem for t in found if t.iteration == k] for k in (0, 1)}
    assert len(found) == 10
    assert problems[0] == problems[1]
    other = transcripts_from_tables(episodes, generations_of(), 5, 1)
    assert [t.problem for t in other] != [t.problem for t in found]


def test_the_order_of_rows_does_not_change_the_sample(episodes_of, generations_of) -> None:
    episodes = _batch(episodes_of)
    turned = episodes.take(pa.array(list(reversed(range(episodes.num_rows)))))
    generations = generations_of({"episode": "0-3"}, {"episode": "0-3", "agent": "verifier"})
    back = generations.take(pa.array([1, 0]))
    assert transcripts_from_tables(episodes, generations, 20, 4) == transcripts_from_tables(
        turned, back, 20, 4
    )


def test_messages_come_in_order_with_invalid_answers_before_the_valid_one(
    episodes_of, generations_of
) -> None:
    generations = generations_of(
        {"round": 1, "agent": "verifier", "text": "Decision: accept", "decision": 1},
        {"round": 0, "attempt": 1, "text": "fine", "model_served": "tiny-2"},
        {"round": 0, "attempt": 0, "text": "", "invalid_reason": "empty"},
        {"round": 0, "episode": "another"},
    )
    [found] = transcripts_from_tables(episodes_of({"rewards": {"prover": 0.5}}), generations, 9, 0)
    assert [(m.round, m.attempt, m.text, m.invalid_reason) for m in found.messages] == [
        (0, 0, "", "empty"),
        (0, 1, "fine", None),
        (1, 0, "Decision: accept", None),
    ]
    assert found.messages[1].model == "tiny-2"
    assert found.rewards == {"prover": 0.5}
    assert found.right


def test_a_leaf_of_a_tree_shows_the_messages_it_shares(episodes_of, generations_of) -> None:
    same = {"problem": "p"}
    episodes = episodes_of(
        {"key": "leaf-0", "branch_path": "0.0.0", **same},
        {"key": "leaf-1", "branch_path": "0.0.1", **same},
        {"key": "leaf-2", "branch_path": "0.1", **same},
        {"key": "other", "branch_path": "0", "problem": "q"},
    )
    first = {"episode": "leaf-0", "branch_path": "0", "round": 0}
    generations = generations_of(
        {**first, "text": "bad", "invalid_reason": "empty"},
        {**first, "text": "root", "attempt": 1},
        {**first, "text": "beside", "agent": "verifier"},
        {"episode": "leaf-0", "branch_path": "0.0", "round": 1, "text": "middle"},
        {"episode": "leaf-0", "branch_path": "0.0.0", "round": 2, "text": "one"},
        {"episode": "leaf-1", "branch_path": "0.0.1", "round": 2, "text": "two"},
        {"episode": "leaf-2", "branch_path": "0.1", "round": 1, "text": "three"},
        {"episode": "other", "branch_path": "0", "round": 0, "text": "four"},
    )

    def texts(limit: int) -> dict[str, list[str]]:
        found = transcripts_from_tables(episodes, generations, limit, 0)
        return {t.key: [m.text for m in t.messages] for t in found}

    shared = ["bad", "root", "beside"]
    everything = {
        "leaf-0": [*shared, "middle", "one"],
        "leaf-1": [*shared, "middle", "two"],
        "leaf-2": [*shared, "three"],
        "other": ["four"],
    }
    assert texts(9) == everything
    # Also where only some leaves of the tree are shown.
    for limit in (1, 2, 3):
        assert len(texts(limit)) == limit and texts(limit).items() <= everything.items()


def test_a_failed_episode_is_never_right(episodes_of, generations_of) -> None:
    episodes = episodes_of({"outcome": "failed", "error": "HTTP 500"})
    [found] = transcripts_from_tables(episodes, generations_of(), 1, 0)
    assert not found.right
    assert "HTTP 500" in transcripts_markdown([found], 1)


def test_a_verdict_says_whether_it_is_right_in_words_of_the_label(episodes_of, generations_of):
    rows = [
        {"y": 1, "decision": 0},
        {"y": 0, "decision": 0},
        {"y": 1, "decision": 1, "decision_value": 0.5},
        {"y": 1, "decision": 2},
        {"y": 0, "decision": 3},
        {"y": 1, "decision": 2, "outcome": "failed", "error": "no answer"},
        {"y": -1, "decision": 2, "outcome": "failed", "error": "no label"},
    ]
    episodes = episodes_of(*rows)
    chosen = transcripts_from_tables(episodes, generations_of(), len(rows), seed=0)
    said = {of.key: judged_words(of) for of in chosen}
    assert [said[key] for key in episodes["key"].to_pylist()] == [
        "wrong: rejected, but the solution is right",
        "right: rejected, and the solution is wrong",
        "right: accepted (+0.5), and the solution is right",
        "wrong: no decision; the solution is right",
        "wrong: neither accepted nor rejected; the solution is wrong",
        "failed; the solution is right",
        "failed; not labelled",
    ]


def test_markdown_of_a_message_can_not_leave_its_fence(episodes_of, generations_of) -> None:
    hostile = "```\n# A heading\n[link](https://example.org)\n````"
    long = "x" * 2_345
    generations = generations_of({"text": hostile}, {"text": long})
    found = transcripts_from_tables(episodes_of({}), generations, 1, 0)
    text = transcripts_markdown(found, 1)
    assert f"`````text\n{hostile}\n`````" in text
    assert "[345 more characters]" in text
    assert "x" * 2_001 not in text


def test_markdown_holds_at_most_the_limit(episodes_of, generations_of) -> None:
    found = transcripts_from_tables(_batch(episodes_of), generations_of(), 20, 0)
    assert transcripts_markdown(found, 3).count("### Iteration") == 3
    assert transcripts_markdown([], 3) == "No transcripts.\n"


def test_each_message_says_to_which_channels_it_went_up_to_the_last_round(
    episodes_of, generations_of
) -> None:
    played = {"interaction_protocol": "debate", "debate_protocol": {"max_message_rounds": 3}}
    protocol = make_protocol(load_parameters({"run_name": "a", "dataset": "x", **played}))
    generations = generations_of(
        {"round": 0, "agent": "verifier"},
        {"round": 1, "agent": "prover0", "invalid_reason": "empty answer"},
        {"round": 1, "agent": "prover0", "attempt": 1},
        {"round": 1, "agent": "prover1"},
        {"round": 2, "agent": "verifier", "decision": 1, "decision_value": 0.25},
    )
    episodes = episodes_of({"protocol": "debate", "decision": 1, "decision_value": 0.25})
    [found] = transcripts_from_tables(episodes, generations, 1, 0, protocol)
    assert [m.channels for m in found.messages] == [
        ("prover0_channel", "prover1_channel"),
        (),
        ("prover0_channel",),
        ("prover1_channel",),
        (),
    ]
    text = transcripts_markdown([found], 1)
    assert "**verifier** (round 0, to prover0_channel, prover1_channel, `tiny-1`)" in text
    assert "**verifier** (round 2, `tiny-1`, decides: accept, +0.25)" in text
    assert "the verdict was **accept, +0.25** (right, finished)" in text
    # Without the protocol that was played, or with another one, nothing is made up.
    other = make_protocol(load_parameters({"run_name": "a", "dataset": "x"}))
    for protocol_ in (None, other):
        [blind] = transcripts_from_tables(episodes, generations, 1, 0, protocol_)
        assert {m.channels for m in blind.messages} == {()}


def test_a_transcript_tells_which_verdict_was_drawn_for_the_provers(
    episodes_of, generations_of
) -> None:
    episodes = episodes_of({"prover_stance": 0}, {"prover_stance": None})
    found = transcripts_from_tables(episodes, generations_of(), 9, 0)
    drawn = {t.key: t for t in found}
    assert drawn["e0"].prover_stance == 0 and drawn["e1"].prover_stance is None
    assert "Argued for: **reject**." in transcripts_markdown([drawn["e0"]], 1)
    assert "Argued for" not in transcripts_markdown([drawn["e1"]], 1)


def test_what_went_wrong_is_shown_first_however_rare_it_is(episodes_of, generations_of) -> None:
    rows = [{"problem": f"p{i}"} for i in range(400)]
    rows[317] |= {"decision": 0}
    rows[42] |= {"outcome": "failed", "decision": 2, "error": "no answer"}
    rows[399] |= {"decision": 2}
    episodes = episodes_of(*rows)
    generations = generations_of(
        {"episode": "e7", "invalid_reason": "empty"}, {"episode": "e7", "attempt": 1}
    )
    why = reasons(episodes, generations, {("p11", 0): 0, ("p12", 0): 1})
    chosen = transcripts_from_tables(
        episodes, generations, 40, 0, worth_reading=why, max_special=300
    )
    first = {t.problem: t.chosen for t in chosen[:5]}
    assert list(first.values()) == ["failed", "wrong", "wrong", "invalid", "changed"]
    assert set(first) == {"p42", "p317", "p399", "p7", "p11"}
    assert len(chosen) == 40 and {t.chosen for t in chosen[5:]} == {"sample"}
    # The sample is the one that there was without them, so iterations can be compared.
    plain = [t.key for t in transcripts_from_tables(episodes, generations, 40, 0)]
    assert [t.key for t in chosen[5:]] == [
        k for k in plain if k not in {"e42", "e317", "e399", "e7", "e11"}
    ][:35]
    crowded = transcripts_from_tables(
        episodes,
        generations,
        8,
        0,
        worth_reading=["wrong"] * 300 + ["sample"] * 100,
        max_special=250,
    )
    assert [t.chosen for t in crowded] == ["wrong"] * 250 + ["sample"] * 2
    few = transcripts_from_tables(episodes, generations, 0, 0, worth_reading=why, max_special=2)
    assert [t.chosen for t in few] == ["failed", "wrong"]


def test_what_agents_were_told_is_what_they_were_asked(episodes_of, generations_of) -> None:
    game = Game(
        load_parameters(
            {
                "run_name": "a",
                "dataset": "families",
                "nip_protocol": {"max_message_rounds": 3},
                "agents": {"prover": {"use_supervisor_message": "all"}},
            }
        )
    )
    generations = generations_of(
        {"round": 0, "agent": "verifier", "text": "Question: a?"},
        {"round": 1, "agent": "prover", "text": "Answer: b"},
        {"round": 2, "agent": "verifier", "text": "Decision: accept", "decision": 1},
    )
    [shown] = transcripts_from_tables(episodes_of({}), generations, 1, 0, game=game)
    assert "[the solution]" in shown.system_prompts["prover"]
    assert set(shown.system_prompts) == {"prover", "verifier"}
    question, answer, decision = (message.told for message in shown.messages)
    assert question is None and decision == game.prompts.last_round_message
    assert answer is not None and answer.startswith("It is your turn.")


def test_what_the_game_announced_is_shown_as_it_was_said(episodes_of, generations_of) -> None:
    """It depends on what was said before, and on the texts of the episode."""
    scenario = {
        "scenario": "chain",
        "dataset": "chains",
        "interaction_protocol": "refereed",
        "scenario_settings": {"steps": 2},
        "refereed_protocol": {"max_message_rounds": 2},
    }
    game = Game(load_parameters({"run_name": "a", **scenario}))
    texts = {
        "question": "Start with 5. Calculate modulo 97.\n1: add 7\n2: multiply by 3",
        "solution": "The chain starts with 5 and ends with 36.",
    }
    generations = generations_of(
        {"round": 0, "agent": "prover0", "text": "Value: 13"},
        {"round": 0, "agent": "prover1", "text": "Value: 12"},
        {"round": 1, "agent": "verifier", "text": "Decision: accept", "decision": 1},
    )
    episodes = episodes_of({"protocol": "refereed", **texts})
    [shown] = transcripts_from_tables(episodes, generations, 1, 0, game=game)
    first, other, last = (message.told for message in shown.messages)
    assert first == other and "State the value after step 1" in (first or "")
    assert last is not None and last.startswith("Step 1 is left: add 7, modulo 97. Before it")
    assert last.endswith("Expert_2 says that the value is 12, Expert_1 13.")
