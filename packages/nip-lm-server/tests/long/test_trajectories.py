"""Training from recorded episodes: what is trained, against what, and what is refused."""

import json
import math
import re
import signal

import pytest

pytest.importorskip("trl")

from tiny_model import TEMPLATE, make_model, make_tokenizer, peft_logprobs
from training_jobs import (
    make_job,
    messages,
    progress,
    read_events,
    result,
    run_here,
    start_process,
    wait_for,
    weights,
)

from nip_base.formats import to_jsonl
from nip_lm_server.training.job import read_job
from nip_lm_server.training.main import main
from nip_lm_server.training.methods.rl import add_advantages, read_episodes
from nip_lm_server.training.model import loading

SETTINGS = {"method": "trajectories", "learning_rate": 0.003, "n_epochs": 1}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def user(content):
    return {"role": "user", "content": content}


def says(content, **more):
    return {"role": "assistant", "content": content, **more}


def episode(*said, reward=0.0, group="g", **more):
    return {"messages": list(said), "reward": reward, "group_id": group, **more}


def episodes(count=8, good="yes", bad="no"):
    """Groups of two: `good` gets 1, `bad` gets 0."""
    return [
        episode(user(f"case {i}"), says(answer), reward=reward, group=f"case {i}")
        for i in range(count)
        for answer, reward in ((good, 1.0), (bad, 0.0))
    ]


def job(base, directory, rows, **changes):
    directory.mkdir(parents=True, exist_ok=True)
    data = directory / "data.jsonl"
    data.write_bytes(to_jsonl(rows))
    return make_job(base, directory / "job", data=data, **{**SETTINGS, **changes})


def encoded(base, directory, *rows, mode="group", **changes):
    job_dir = job(base, directory, rows, **changes)
    text = loading.load_text(read_job(job_dir))
    return read_episodes(directory / "data.jsonl", text, mode, "training_file")


def prompt_ids(tokenizer, text):
    return tokenizer(f"<|user|>{text}<|end|><|assistant|>")["input_ids"]


# The data


def actions(tokenizer, sequence):
    chosen = zip(sequence.input_ids, sequence.actions, strict=True)
    return tokenizer.decode([token for token, acted in chosen if acted])


def test_actions_are_the_weighted_messages_of_the_assistant_with_their_stop(
    base, tokenizer, tmp_path
):
    said = [user("a"), says("first", weight=0), user("b"), says("second"), user("c"), says("3")]
    one, _ = encoded(base, tmp_path, episode(*said), episode(user("a"), says("x")))
    (sequence,) = one.sequences
    assert actions(tokenizer, sequence) == "second<|end|>3<|end|>"
    assert tokenizer.decode(sequence.input_ids) == (
        "<|user|>a<|end|><|assistant|>first<|end|><|user|>b<|end|><|assistant|>second<|end|>"
        "<|user|>c<|end|><|assistant|>3<|end|>"
    )


def test_generated_tokens_are_trained_as_they_are(base, tokenizer, tmp_path):
    ids = [*tokenizer("yes")["input_ids"]]  # cut off: there is no stop token
    said = [user("a"), says("yes", token_ids=ids, logprobs=[-0.5, -0.25, -0.125])]
    one, _ = encoded(base, tmp_path, episode(*said), episode(user("a"), says("x")))
    (sequence,) = one.sequences
    prompt = prompt_ids(tokenizer, "a")
    assert sequence.input_ids == (*prompt, *ids)
    assert sequence.actions == (*[False] * len(prompt), True, True, True)
    assert sequence.logprobs == (*[0.0] * len(prompt), -0.5, -0.25, -0.125)


def test_turns_in_tokens_that_continue_each_other_are_one_sequence(base, tmp_path):
    turns = [
        {"prompt_token_ids": [10, 11], "completion_token_ids": [12, 1], "logprobs": [-1.0, -2.0]},
        {"prompt_token_ids": [10, 11, 12, 1, 20], "completion_token_ids": [13]},
        {"prompt_token_ids": [30], "completion_token_ids": [31], "logprobs": [-3.0]},
    ]
    row = {"turns": turns, "group_id": "g", "reward": 0}
    joined, alone = encoded(base, tmp_path, row, row)[0].sequences
    assert joined.input_ids == (10, 11, 12, 1, 20, 13)
    assert joined.actions == (False, False, True, True, False, True)
    assert joined.logprobs[2:4] == (-1.0, -2.0)
    assert math.isnan(joined.logprobs[5])
    assert (alone.input_ids, alone.logprobs) == ((30, 31), (0.0, -3.0))


def test_a_template_that_rewrites_earlier_turns_gives_a_sequence_for_each(tmp_path):
    # It shows only the last two messages.
    template = TEMPLATE.replace("in messages", "in messages[-2:]").replace(
        "messages[-2:]", "(messages[-1:] if add_generation_prompt else messages[-2:])"
    )
    base = make_model(tmp_path / "forgets", template=template)
    said = [user("a"), says("one"), user("b"), says("two")]
    episode_, _ = encoded(base, tmp_path, episode(*said), episode(*said))
    first, second = (make_tokenizer().decode(s.input_ids) for s in episode_.sequences)
    assert first == "<|user|>a<|end|><|assistant|>one<|end|>"
    assert second == "<|user|>b<|end|><|assistant|>two<|end|>"


def test_groups_with_equal_rewards_are_left_out_and_counted(base, tmp_path):
    rewards = {"a": [1, 0, 0], "b": [0.3, 0.3], "c": [2, 4]}
    rows = [
        episode(user("q"), says("x"), reward=reward, group=group)
        for group, values in rewards.items()
        for reward in values
    ]
    found = encoded(base, tmp_path, *rows)
    kept, skipped = add_advantages(found, "group")
    assert skipped == 1
    assert [e.advantage for e in kept] == pytest.approx([2 / 3, -1 / 3, -1 / 3, -1, 1])
    kept, _ = add_advantages(found, "group_std")
    root = math.sqrt(3)
    expected = [2 / root, -1 / root, -1 / root, -math.sqrt(0.5), math.sqrt(0.5)]
    assert [e.advantage for e in kept] == pytest.approx(expected)
    assert add_advantages(found, None)[0] == kept


def test_advantages_that_are_given_are_used_unless_the_setting_says_otherwise(base, tmp_path):
    rows = [
        episode(user("q"), says("x"), reward=reward, advantage=advantage)
        for reward, advantage in ((1, -3), (0, 7))
    ]
    found = encoded(base, tmp_path, *rows)
    assert [e.advantage for e in add_advantages(found, None)[0]] == [-3, 7]
    assert [e.advantage for e in add_advantages(found, "given")[0]] == [-3, 7]
    assert [e.advantage for e in add_advantages(found, "group")[0]] == [0.5, -0.5]


@pytest.mark.parametrize(
    ("row", "changes", "code", "message"),
    [
        (episode(user("q"), says("long " * 20)), {"max_length": 100}, "example_too_long",
         r"line 2: .* sequence of \d+ tokens, but at most 100"),
        (episode(user("q"), says("ok", logprobs=[-1.0, -1.0])), {}, "lengths_differ",
         r"line 2: messages\[1\] has 2 logprobs, but its text is 3 tokens"),
        (episode(user("q"), says("ok", token_ids=[9, 9, 1])), {}, "token_ids_differ",
         r"line 2: messages\[1\].token_ids are the text '.*', but its content is 'ok'"),
        ({"turns": [{"prompt_token_ids": [261], "completion_token_ids": [1]}], "group_id": "g",
          "reward": 1}, {}, "unknown_token_id", "line 2: .* token id 261,"),
        (episode(user("q"), says("x"), group="alone"), {}, "group_of_one", "line 1: the group"),
        (episode(user("q"), says("x")), {"advantage": "given"}, "missing_advantage", "line 1"),
        (episode(user("q")), {}, "missing_assistant_message", "line 2"),
    ],
)  # fmt: skip
def test_what_can_not_be_trained_on_names_its_line(base, tmp_path, row, changes, code, message):
    job_dir = job(base, tmp_path, [episode(user("q"), says("x")), row], **changes)
    assert main(["--job-dir", str(job_dir)]) == 1
    error = read_events(job_dir)[-1]
    assert (error["code"], error["param"]) == (code, "training_file")
    assert re.search(message, error["message"]), error


# The training


def test_what_was_rewarded_becomes_likelier_and_the_rest_less_likely(base, tokenizer, tmp_path):
    job_dir = job(base, tmp_path, episodes(), n_epochs=3)
    run_here(job_dir)
    for answer, better in (("yes", True), ("no", False)):
        ids = prompt_ids(tokenizer, "case 3")
        size = len(ids)
        ids += tokenizer(answer + "<|end|>")["input_ids"]
        before = sum(peft_logprobs(base, None, ids)[size - 1 :])
        after = sum(peft_logprobs(base, job_dir / "out", ids)[size - 1 :])
        assert (after > before) is better, answer
    assert result(job_dir)["unchanged"] is False
    assert result(job_dir)["steps"] == 12


def test_the_first_step_s_loss_is_the_formula_on_the_data_s_log_probabilities(
    base, tokenizer, tmp_path
):
    prompt = prompt_ids(tokenizer, "a")
    answers = [tokenizer(text)["input_ids"] for text in ("yes<|end|>", "no<|end|>")]
    given = [[-1.0, -2.0, -3.0, -4.0], [-3.0, -2.5, -2.0]]
    rows = [
        {
            "turns": [
                {"prompt_token_ids": prompt, "completion_token_ids": ids, "logprobs": logprobs}
            ],
            "group_id": "g",
            "reward": reward,
        }
        for ids, logprobs, reward in zip(answers, given, (1.0, 0.0), strict=True)
    ]
    settings = {"advantage": "group", "clip_low": 0.3, "clip_high": 0.4, "kl_penalty": 0.5}
    job_dir = job(base, tmp_path, rows, **settings)
    run_here(job_dir)
    total, ratios, clipped = 0.0, [], 0
    for ids, logprobs, advantage in zip(answers, given, (0.5, -0.5), strict=True):
        new = peft_logprobs(base, None, [*prompt, *ids])[len(prompt) - 1 :]
        for ours, theirs in zip(new, logprobs, strict=True):
            ratio = math.exp(ours - theirs)
            cut = min(max(ratio, 0.7), 1.4)
            total -= min(ratio * advantage, cut * advantage)
            clipped += cut * advantage < ratio * advantage
            ratios.append(ratio)
    first = progress(job_dir)[0]
    assert first["loss"] == pytest.approx(total / 7, rel=1e-4)
    assert first["policy/ratio"] == pytest.approx(sum(ratios) / 7, rel=1e-4)
    assert first["policy/clipped"] == pytest.approx(clipped / 7)
    assert first["kl"] == pytest.approx(0, abs=1e-6)  # the reference is where it starts
    assert first["tokens"] == sum(len(prompt) + len(ids) for ids in answers)
    assert not any("log-probabilities" in text for text in messages(job_dir))


def test_log_probabilities_that_are_missing_are_those_of_the_start_and_stay_so(base, tmp_path):
    job_dir = job(base, tmp_path, episodes(2), n_epochs=4, batch_size=4, learning_rate=0.05)
    run_here(job_dir)
    ratios = [event["policy/ratio"] for event in progress(job_dir)]
    assert ratios[0] == pytest.approx(1, abs=1e-4)
    assert abs(ratios[-1] - 1) > 0.05  # still compared with the start
    assert any("4 of 4 sequences are not in the data" in text for text in messages(job_dir))


def test_the_reference_of_a_continued_training_is_its_parent(base, tmp_path):
    first = job(base, tmp_path / "1", episodes(), learning_rate=0.01)
    run_here(first)
    start = {"parent_adapter_path": first / "out", "start_from": "continue"}
    more = job(base, tmp_path / "2", episodes(), kl_penalty=0.1, **start)
    run_here(more)
    steps = progress(more)
    assert steps[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert steps[0]["policy/ratio"] == pytest.approx(1, abs=1e-4)
    assert steps[-1]["kl"] > 1e-5


def test_a_strong_penalty_keeps_the_policy_near_its_start(base, tmp_path):
    moved = {}
    for penalty in (0.0, 10.0):
        job_dir = job(base, tmp_path / str(penalty), episodes(), n_epochs=5, kl_penalty=penalty)
        run_here(job_dir)
        probe = json.loads((job_dir / "out" / "probe.json").read_text())
        pairs = zip(probe["logprobs"], probe["base_logprobs"], strict=True)
        moved[penalty] = sum(abs(a - b) for a, b in pairs)
    assert moved[10.0] < moved[0.0] / 2


def test_equal_rewards_everywhere_train_nothing_and_say_unchanged(base, tmp_path):
    rows = [{**row, "reward": 0.5} for row in episodes()]
    job_dir = job(base, tmp_path, rows, weight_decay=0.1)
    run_here(job_dir)
    figures = result(job_dir)
    assert (figures["unchanged"], figures["steps"], figures["final_loss"]) == (True, 0, None)
    probe = json.loads((job_dir / "out" / "probe.json").read_text())
    assert probe["logprobs"] == probe["base_logprobs"]
    assert any("8 groups left out" in text for text in messages(job_dir))
    assert any("nothing is trained" in text for text in messages(job_dir))


def test_nothing_to_train_over_a_parent_is_the_parent(base, tmp_path):
    first = job(base, tmp_path / "1", episodes())
    run_here(first)
    rows = [{**row, "advantage": 0} for row in episodes()]
    for start in ("continue", "stack"):
        still = job(
            base, tmp_path / start, rows, parent_adapter_path=first / "out", start_from=start
        )
        run_here(still)
        assert result(still)["unchanged"] is True
        probes = [json.loads((d / "out" / "probe.json").read_text()) for d in (first, still)]
        assert probes[1]["logprobs"] == pytest.approx(probes[0]["logprobs"], abs=1e-4)


def test_a_validation_file_gives_a_validation_loss(base, tmp_path):
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_bytes(to_jsonl(episodes(3)))
    job_dir = job(base, tmp_path, episodes(), validation_file=held_out, n_epochs=3)
    run_here(job_dir)
    assert result(job_dir)["validation_loss"] < -0.01  # at the start it is 0, by its groups


def test_packing_is_refused(base, tmp_path):
    job_dir = job(base, tmp_path, episodes(), packing=True)
    assert main(["--job-dir", str(job_dir)]) == 1
    error = read_events(job_dir)[-1]
    assert (error["code"], error["param"]) == ("packing_unsupported", "packing")


@pytest.mark.kill_matrix
def test_a_killed_training_continues_and_gives_the_same_bytes(base, tmp_path):
    settings = {"n_epochs": 10, "kl_penalty": 0.05, "checkpoint_steps": 2, "lora_dropout": 0.1}
    whole = job(base, tmp_path / "whole", episodes(), **settings)
    run_here(whole)
    killed = job(base, tmp_path / "killed", episodes(), **settings)
    process = start_process(killed)
    try:
        wait_for(
            lambda: any((killed / "checkpoints").glob("step-*/manifest.json")), "no checkpoint"
        )
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    finally:
        process.kill()
    assert not (killed / "out" / "training_result.json").exists()
    run_here(killed)
    assert result(killed)["continued_from_step"] >= 2
    assert weights(killed) == weights(whole)
