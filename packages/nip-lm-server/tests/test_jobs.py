"""Fine-tuning jobs: exactly one, whatever is killed; what ends them; what they leave."""

import concurrent.futures
import hashlib
import json
import os
import signal
import sqlite3
import time
from typing import Any

import openai
import pytest

from nip_base import formats
from nip_base.machine.processes import process_identity
from nip_lm_server import launch as owner

SLOW = "training: {seconds: 1.5}\n"


def examples(count: int = 10, answer: str = "Answer: yes.") -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": f"{i}"},
                {"role": "assistant", "content": answer},
            ]
        }
        for i in range(count)
    ]


def keyed(key: str) -> dict[str, Any]:
    return {"extra_headers": {"Idempotency-Key": key}}


def events_of(server, job_id: str) -> list[Any]:
    events = list(server.client.fine_tuning.jobs.list_events(job_id, limit=5))
    return events[::-1]


def test_a_job_ends_with_a_committed_proved_and_served_adapter(server) -> None:
    file_id = server.upload()
    job = server.train(file_id, suffix="one", seed=7, metadata={"k": "v"}, **keyed("happy"))
    name = job.fine_tuned_model
    assert name.startswith("ft:sim:one:") and len(name.split(":")[3]) == 12
    assert (job.seed, job.metadata, job.error) == (7, {"k": "v"}, None)
    assert job.finished_at >= job.created_at
    # 10 answers of 12 characters are 4 tokens each, learned in 3 epochs.
    assert job.trained_tokens == 10 * 4 * 3

    model = server.client.models.retrieve(name)
    nip = model.nip
    assert nip["job"] == job.id and nip["parent"] is None and nip["proof"]["matches"] is True
    assert nip["digest"] == name.split(":")[3]
    assert name in [m.id for m in server.client.models.list()]
    answer = server.client.chat.completions.create(
        model=name, messages=[{"role": "user", "content": "hi"}]
    )
    assert answer.model == name

    directory = server.state_dir / "models" / nip["digest"]
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["job"] == job.id and manifest["content_digest"] == nip["content_digest"]
    for file, facts in manifest["files"].items():
        assert hashlib.sha256((directory / file).read_bytes()).hexdigest() == facts["sha256"]
    adapter = json.loads((directory / "adapter.json").read_text())
    content = formats.to_jsonl(
        example
        for _, example in formats.read_examples(
            "supervised", server.client.files.content(file_id).content
        )
    )
    assert adapter["examples_digest"] == hashlib.sha256(content).hexdigest()

    (result_id,) = job.result_files
    assert server.client.files.retrieve(result_id).purpose == "fine-tune-results"
    lines = server.client.files.content(result_id).text.splitlines()
    assert lines[0].split(",")[0] == "step" and int(lines[-1].split(",")[0]) == 6
    messages = [event.message for event in events_of(server, job.id)]
    assert messages[0].startswith("Created fine-tuning job")
    assert messages[-1] == "The job has successfully completed"
    assert [m for m in messages if m.startswith("Step ")][-1] == "Step 6/6"


def test_full_training_makes_a_base_model_that_is_served_and_trained_on(make_server) -> None:
    server = make_server()
    full = server.train(extra_body={"nip": {"use_lora": False}}, suffix="whole")
    assert full.nip["result_kind"] == "base" and full.nip["lora_rank"] is None
    base = full.fine_tuned_model
    assert server.client.models.retrieve(base).nip["kind"] == "base"
    assert any("makes a new base model" in e.message for e in events_of(server, full.id))
    adapter = server.train(model=base)
    assert (adapter.nip["base_model"], adapter.nip["start_from"]) == (base, "base")
    assert server.client.models.retrieve(adapter.fine_tuned_model).nip["base_model"] == base
    for model in (base, adapter.fine_tuned_model):
        answer = server.client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hi"}]
        )
        assert answer.model == model
    with pytest.raises(openai.ConflictError):
        server.client.models.delete(base)


def test_effective_settings_are_echoed(server) -> None:
    job = server.create(
        server.upload(),
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}},
        extra_body={"nip": {"learning_rate": 0.01, "lora_rank": 4, "warmup_ratio": 0.1}},
    )
    assert job.hyperparameters.n_epochs == 2
    assert job.hyperparameters.batch_size == 8
    assert job.method.supervised.hyperparameters.n_epochs == 2
    assert job.nip["lora_rank"] == 4 and job.nip["lora_alpha"] == 8
    assert job.nip["learning_rate"] == 0.01 and job.nip["start_from"] == "base"
    old = server.create(
        server.upload(),
        hyperparameters={"batch_size": 2, "n_epochs": "auto", "learning_rate_multiplier": 0.5},
        extra_body={"nip": {"learning_rate": 0.01}},
    )
    assert (old.hyperparameters.batch_size, old.hyperparameters.n_epochs) == (2, 3)
    assert old.nip["effective_learning_rate"] == 0.005


PREFERENCE = {
    "input": {"messages": [{"role": "user", "content": "Is it?"}]},
    "preferred_output": [{"role": "assistant", "content": "Yes."}],
    "non_preferred_output": [{"role": "assistant", "content": "No."}],
}
TRAJECTORY = {
    "messages": [
        {"role": "user", "content": "Is it?"},
        {"role": "assistant", "content": "Yes."},
    ],
    "group_id": "g",
    "reward": 1.0,
}


@pytest.mark.parametrize(
    ("method", "asked", "shown"),
    [
        ("dpo", {"beta": 0.5}, {"beta": 0.5}),
        (
            "trajectories",
            {"clip_low": 0.1, "kl_penalty": 0.01, "advantage": "group"},
            {"clip_low": 0.1, "clip_high": 0.1, "kl_penalty": 0.01, "advantage": "group"},
        ),
    ],
)
def test_a_job_of_another_method_is_checked_by_its_rules_and_shows_its_settings(
    server, method: str, asked: dict[str, Any], shown: dict[str, Any]
) -> None:
    row = {"dpo": PREFERENCE, "trajectories": TRAJECTORY}[method]
    rows = [{**row} for _ in range(10)]
    given = {"type": method, method: {"hyperparameters": {"n_epochs": 2, **asked}}}
    job = server.create(server.upload(rows), extra_body={"method": given})
    plain = job.model_dump()
    common = {"n_epochs": 2, "batch_size": 8, "learning_rate_multiplier": 1.0}
    assert plain["method"]["type"] == method
    assert plain["method"][method]["hyperparameters"] == {**common, **shown}
    assert plain["hyperparameters"] == common
    assert shown.items() <= plain["nip"].items()
    done = server.wait(job.id)
    assert done.status == "succeeded", done.error
    # What is right for another method is wrong for this one, and the line is named.
    wrong = server.wait(server.create(server.upload(), extra_body={"method": given}).id)
    assert (wrong.status, wrong.error.param) == ("failed", "training_file")
    assert "line 1" in wrong.error.message


@pytest.mark.parametrize(
    ("suffix", "in_name"),
    [
        ("My helper, v2 (draft)", "My-helper-v2-draft"),
        ("a:b/c", "a-b-c"),
        ("  run_1.0 ", "run_1.0"),
        ("\u65e5\u672c", ""),
        ("x " * 32, "-".join("x" * 32)),
    ],
)
def test_a_suffix_is_any_text_and_stands_in_the_name_as_far_as_names_go(
    server, suffix: str, in_name: str
) -> None:
    job = server.train(suffix=suffix)
    assert job.fine_tuned_model.split(":")[:3] == ["ft", "sim", in_name]
    assert job.nip["suffix"] == suffix
    assert server.client.models.retrieve(job.fine_tuned_model).id == job.fine_tuned_model


@pytest.mark.parametrize(
    ("arguments", "code", "param"),
    [
        ({"model": "other"}, "model_not_found", "model"),
        ({"training_file": "file-0"}, "invalid_file", "training_file"),
        ({"validation_file": "file-0"}, "invalid_file", "validation_file"),
        ({"suffix": ""}, "invalid_value", "suffix"),
        ({"suffix": "a" * 65}, "invalid_value", "suffix"),
        ({"seed": -1}, "invalid_value", "seed"),
        ({"metadata": {str(i): "" for i in range(17)}}, "invalid_value", "metadata"),
        ({"metadata": {"k" * 65: ""}}, "invalid_value", "metadata"),
        ({"extra_body": {"metadata": {"a": None}}}, "invalid_value", "metadata.a"),
        ({"integrations": [{"type": "wandb"}]}, "unsupported_value", "integrations"),
        ({"extra_body": {"stream": True}}, "unknown_parameter", "stream"),
        ({"extra_body": {"[key]": 1}}, "unknown_parameter", "[key]"),
        ({"extra_body": {"metadata": {"[key]": 1}}}, "invalid_value", "metadata.[key]"),
        ({"extra_body": {"nip": 5}}, "invalid_value", "nip"),
        ({"extra_body": {"method": {}}}, "missing_required_parameter", "method.type"),
        ({"extra_body": {"nip": {"strange": 1}}}, "unknown_parameter", "nip.strange"),
        (
            {"extra_body": {"nip": {"lora_target_modules": ["q", 1]}}},
            "invalid_value",
            "nip.lora_target_modules",
        ),
        (
            {"method": {"type": "reinforcement", "reinforcement": {"grader": {}}}},
            "unsupported_method",
            "method.type",
        ),
        ({"method": {"type": "magic"}}, "invalid_value", "method.type"),
        ({"method": {"type": "dpo", "supervised": {}}}, "invalid_value", "method.supervised"),
        ({"method": {"type": "dpo", "grpo": {}}}, "unknown_parameter", "method.grpo"),
        (
            {"method": {"type": "supervised", "supervised": {"hyperparameters": {"beta": 0.1}}}},
            "unknown_parameter",
            "method.supervised.hyperparameters.beta",
        ),
        (
            {"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0}}}},
            "invalid_value",
            "method.dpo.hyperparameters.beta",
        ),
        ({"hyperparameters": {"n_epochs": 51}}, "invalid_value", "hyperparameters.n_epochs"),
        ({"hyperparameters": {"n_epochs": "3"}}, "invalid_value", "hyperparameters.n_epochs"),
        ({"extra_body": {"nip": {"lora_rnak": 1}}}, "unknown_parameter", "nip.lora_rnak"),
        ({"extra_body": {"nip": {"lora_rank": 0}}}, "invalid_value", "nip.lora_rank"),
        ({"extra_body": {"nip": {"start_from": "continue"}}}, "invalid_value", "nip.start_from"),
        ({"extra_body": {"nip": {"quantization": "4bit"}}}, "invalid_value", "nip.quantization"),
        ({"extra_body": {"nip": {"lora_rank": 513}}}, "invalid_value", "nip.lora_rank"),
        ({"extra_body": {"more": 1}}, "unknown_parameter", "more"),
    ],
)
def test_a_request_that_is_wrong_makes_no_job(
    server, arguments: dict[str, Any], code: str, param: str
) -> None:
    before = [job.id for job in server.client.fine_tuning.jobs.list()]
    arguments = {"model": "sim", "training_file": server.upload(), **arguments}
    with pytest.raises(openai.BadRequestError) as caught:
        server.client.fine_tuning.jobs.create(**arguments)
    assert (caught.value.code, caught.value.param) == (code, param), caught.value
    assert [job.id for job in server.client.fine_tuning.jobs.list()] == before


@pytest.mark.parametrize(
    ("rows", "code", "says"),
    [
        (examples(9), "too_few_examples", "9 example(s)"),
        ([*examples(10), {"messages": []}], "invalid_messages", "line 11"),
        (
            [*examples(3), {"messages": [{"role": "robot", "content": "x"}]}, *examples(9)],
            "invalid_role",
            "line 4: messages[0].role is 'robot'",
        ),
    ],
)
def test_wrong_content_ends_the_job_with_the_line(
    server, rows: list[Any], code: str, says: str
) -> None:
    job = server.wait(server.create(server.upload(rows)).id)
    assert job.status == "failed" and job.fine_tuned_model is None
    assert (job.error.code, job.error.param) == (code, "training_file")
    assert says in job.error.message
    assert events_of(server, job.id)[-1].level == "error"
    validation = server.create(server.upload(), validation_file=server.upload(rows))
    ended = server.wait(validation.id)
    if code == "too_few_examples":  # validation data may be few
        assert ended.status == "succeeded"
    else:
        assert (ended.error.code, ended.error.param) == (code, "validation_file")


def test_the_same_key_and_payload_give_the_first_job(server) -> None:
    file_id = server.upload()
    first = server.create(file_id, seed=1, **keyed("again"))
    second = server.create(file_id, seed=1, **keyed("again"))
    assert second.id == first.id
    server.wait(first.id)
    assert server.create(file_id, seed=1, **keyed("again")).status == "succeeded"
    with pytest.raises(openai.ConflictError) as caught:
        server.create(file_id, seed=2, **keyed("again"))
    assert caught.value.code == "idempotency_key_reused" and first.id in caught.value.message
    assert server.create(file_id, seed=1).id != first.id


def test_null_counts_as_not_sent_in_a_jobs_request_too(server) -> None:
    file_id = server.upload()
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}}
    plain = server.create(file_id, extra_body={"method": method}, **keyed("nulls"))
    hyperparameters = {"n_epochs": 2, "batch_size": None}
    method = {"type": "supervised", "dpo": None, "supervised": {"hyperparameters": hyperparameters}}
    nulls = {"method": method, "seed": None, "nip": None, "hyperparameters": None, "metadata": None}
    assert server.create(file_id, extra_body=nulls, **keyed("nulls")).id == plain.id
    server.create(file_id, extra_body={"nip": {"use_lora": None, "max_length": None}})
    with pytest.raises(openai.BadRequestError) as caught:
        server.create(file_id, extra_body={"model": None})
    assert (caught.value.code, caught.value.param) == ("missing_required_parameter", "model")


def test_a_seed_that_is_too_large_is_shown_as_it_was_sent(server) -> None:
    for seed in (2**31, 2**63, 10**30 + 1):
        with pytest.raises(openai.BadRequestError, match=f"got {seed}\\b") as caught:
            server.create("file-0", seed=seed)
        assert caught.value.param == "seed"


@pytest.mark.long
def test_a_models_name_follows_from_key_and_content_on_any_server(make_server) -> None:
    one, two = make_server(name="one"), make_server(name="two")
    two.upload()  # ids of files differ anyhow; their content is what counts
    names = [s.train(seed=1, **keyed("k")).fine_tuned_model for s in (one, two)]
    assert names[0] == names[1]
    contents = [s.client.models.retrieve(names[0]).nip["content_digest"] for s in (one, two)]
    assert contents[0] == contents[1]
    uploaded_again = one.create(one.upload(), seed=1, **keyed("k"))
    assert uploaded_again.fine_tuned_model == names[0]
    other = two.upload(examples(answer="Answer: no."))
    with pytest.raises(openai.ConflictError):
        two.create(other, seed=1, **keyed("k"))
    assert two.train(other, seed=1, **keyed("l")).fine_tuned_model != names[0]


def test_of_requests_that_race_with_one_key_one_makes_a_job(server) -> None:
    file_id = server.upload()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        ids = list(
            pool.map(
                lambda _: server.create(file_id, metadata={"race": "1"}, **keyed("race")).id,
                range(32),
            )
        )
    assert len(set(ids)) == 1
    listed = server.client.get(
        "/fine_tuning/jobs", cast_to=object, options={"params": {"metadata[race]": "1"}}
    )
    assert [job["id"] for job in listed["data"]] == [ids[0]]


def test_jobs_are_found_by_metadata_and_paged(server) -> None:
    file_id = server.upload()
    ids = [server.create(file_id, metadata={"group": "g", "number": str(i)}).id for i in range(3)]
    jobs = server.client.fine_tuning.jobs
    assert [j.id for j in jobs.list(metadata={"group": "g"})] == ids[::-1]
    assert [j.id for j in jobs.list(metadata={"group": "g", "number": "1"})] == [ids[1]]
    assert jobs.list(metadata={"group": "h"}).data == []
    page = jobs.list(limit=2, metadata={"group": "g"})
    assert [j.id for j in page.data] == ids[:0:-1] and page.has_more
    assert [j.id for j in jobs.list(limit=1, metadata={"group": "g"})] == ids[::-1]
    none = server.client.get(
        "/fine_tuning/jobs", cast_to=object, options={"params": {"metadata": "null"}}
    )
    assert not set(ids) & {job["id"] for job in none["data"]}


def test_events_are_paged_newest_first(server) -> None:
    job = server.train()
    list_events = server.client.fine_tuning.jobs.list_events
    everything = list_events(job.id, limit=100).data
    assert [event.id for event in list_events(job.id, limit=3)] == [e.id for e in everything]
    assert [e.message for e in everything][-1].startswith("Created fine-tuning job")
    metrics = [e.data for e in everything if e.type == "metrics"]
    assert [m["step"] for m in metrics] == sorted((m["step"] for m in metrics), reverse=True)
    with pytest.raises(openai.NotFoundError):
        list_events("ftjob-0")


def test_an_adapter_is_continued_and_its_parent_kept(server) -> None:
    first = server.train(extra_body={"nip": {"lora_rank": 4, "lora_alpha": 12}}).fine_tuned_model
    second = server.train(model=first)
    assert second.nip["start_from"] == "continue" and second.nip["parent"] == first
    assert (second.nip["lora_rank"], second.nip["lora_alpha"]) == (4, 12)
    nip = server.client.models.retrieve(second.fine_tuned_model).nip
    assert nip["parent"] == first
    adapter = server.state_dir / "models" / nip["digest"] / "adapter.json"
    assert json.loads(adapter.read_text())["generation"] == 2

    with pytest.raises(openai.BadRequestError, match="keeps the adapter's shape") as caught:
        server.create(server.upload(), model=first, extra_body={"nip": {"lora_rank": 8}})
    assert caught.value.param == "nip.lora_rank"
    with pytest.raises(openai.ConflictError, match="is needed by the model"):
        server.client.models.delete(first)
    fresh = server.train(model=first, extra_body={"nip": {"start_from": "base"}})
    assert server.client.models.retrieve(fresh.fine_tuned_model).nip["parent"] is None

    server.client.models.delete(second.fine_tuned_model)
    server.client.models.delete(first)
    assert not adapter.parent.exists()
    with pytest.raises(openai.NotFoundError):
        server.client.chat.completions.create(
            model=first, messages=[{"role": "user", "content": "x"}]
        )


def test_equal_trainings_give_equal_weights_under_two_names(server) -> None:
    file_id = server.upload()
    one, two = (server.train(file_id, seed=3, **keyed(f"twin {i}")) for i in range(2))
    assert one.fine_tuned_model != two.fine_tuned_model
    adapters = [
        json.loads(
            (server.state_dir / "models" / j.fine_tuned_model[-12:] / "adapter.json").read_text()
        )
        for j in (one, two)
    ]
    assert adapters[0].pop("job_key") != adapters[1].pop("job_key")
    assert adapters[0] == adapters[1]


def test_a_running_and_a_queued_job_can_be_cancelled(make_server) -> None:
    server = make_server("training: {seconds: 30}\n")
    file_id = server.upload()
    running = server.create(file_id)
    queued = server.create(file_id)
    server.wait(running.id, "running")
    server.wait(queued.id, "queued")
    with pytest.raises(openai.ConflictError):
        server.client.files.delete(file_id)
    cancel = server.client.fine_tuning.jobs.cancel
    assert cancel(queued.id).status == "cancelled"
    assert cancel(running.id).status == "cancelled"
    assert cancel(running.id).status == "cancelled"
    time.sleep(0.2)
    for id in (running.id, queued.id):
        job = server.client.fine_tuning.jobs.retrieve(id)
        assert (job.status, job.fine_tuned_model) == ("cancelled", None)
    assert list((server.state_dir / "models").iterdir()) == []
    assert server.client.files.delete(file_id).deleted
    assert [m.id for m in server.client.models.list()] == ["sim"]


def test_a_job_that_ended_can_not_be_cancelled(server) -> None:
    job = server.train()
    with pytest.raises(openai.BadRequestError, match="succeeded"):
        server.client.fine_tuning.jobs.cancel(job.id)


def test_cancelling_leaves_neither_checkpoints_nor_weights(make_server) -> None:
    server = make_server("training: {seconds: 30}\n")
    job = server.create(server.upload())
    server.wait(job.id, "running")
    server.client.fine_tuning.jobs.cancel(job.id)
    directory = server.state_dir / "jobs" / job.id
    deadline = time.monotonic() + 10
    while {path.name for path in directory.iterdir()} - {"log.jsonl", "log.txt"}:
        assert time.monotonic() < deadline, list(directory.iterdir())
        time.sleep(0.02)
    lines = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    events = [line["event"] for line in lines]
    assert [events[0], events[-1]] == ["created", "cancelled"]
    assert all({"time", "level", "event", "job"} <= line.keys() for line in lines)


def test_an_injected_failure_and_a_missing_proof_fail_the_job(make_server) -> None:
    failing = make_server("training: {fail_rate: 1}\n", "failing")
    job = failing.wait(failing.create(failing.upload()).id)
    assert (job.status, job.error.code) == ("failed", "injected_failure")
    unproved = make_server("training: {unproved_rate: 1}\n", "unproved")
    job = unproved.wait(unproved.create(unproved.upload()).id)
    assert (job.status, job.error.code) == ("failed", "adapter_not_proved")
    assert [m.id for m in unproved.client.models.list()] == ["sim"]
    assert list((unproved.state_dir / "models").iterdir()) == []
    # It was asked twice, and the weights are not thrown away.
    events = [event.message for event in unproved.client.fine_tuning.jobs.list_events(job.id)]
    assert sum("loaded and proved again" in message for message in events) == 1
    (kept,) = (unproved.state_dir / "set_aside").iterdir()
    assert (kept / "manifest.json").is_file() and f"set_aside/{kept.name}" in job.error.message


def kill(server) -> None:
    os.kill(server.handle.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while process_identity(server.handle.pid) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    server.client.close()


def test_a_killed_server_finishes_the_same_job_once(make_server) -> None:
    server = make_server(SLOW, is_apart=True)
    file_id = server.upload()
    job = server.create(file_id, metadata={"key": "k"}, **keyed("k"))
    later = server.create(file_id, **keyed("later"))
    server.wait(job.id, "running")
    time.sleep(0.4)
    kill(server)
    server.start()
    assert server.create(file_id, metadata={"key": "k"}, **keyed("k")).id == job.id
    done = server.wait(job.id)
    assert done.status == "succeeded" and done.nip["attempts"] == 2
    assert server.wait(later.id).status == "succeeded"
    assert [j.id for j in server.client.fine_tuning.jobs.list()] == [later.id, job.id]
    assert len(server.client.models.list().data) == 3
    messages = [event.message for event in events_of(server, job.id)]
    assert messages.count("The job has successfully completed") == 1
    assert "The server was restarted; the job is run again" in messages


@pytest.mark.long
def test_a_stopped_server_keeps_its_job_for_the_next(make_server) -> None:
    server = make_server(SLOW)
    job = server.create(server.upload())
    server.wait(job.id, "running")
    server.stop()
    server.start()
    assert server.wait(job.id).status == "succeeded"


def test_a_kill_between_commit_and_success_uses_what_was_committed(make_server) -> None:
    server = make_server(is_apart=True)
    job = server.train()
    name, digest = job.fine_tuned_model, job.fine_tuned_model[-12:]
    manifest = (server.state_dir / "models" / digest / "manifest.json").read_text()
    kill(server)
    with sqlite3.connect(server.state_dir / "jobs.sqlite3") as connection:
        connection.execute("DELETE FROM models")
        connection.execute("UPDATE jobs SET status = 'running', finished_at = NULL, result = NULL")
    connection.close()
    server.start()
    again = server.wait(job.id)
    assert (again.status, again.fine_tuned_model) == ("succeeded", name)
    assert (server.state_dir / "models" / digest / "manifest.json").read_text() == manifest


def test_adapters_are_served_and_proved_again_after_a_restart(make_server) -> None:
    server = make_server(is_apart=True)
    names = [server.train().fine_tuned_model for _ in range(2)]
    messages = [{"role": "user", "content": "hi"}]
    ask = lambda: [  # noqa: E731
        server.client.chat.completions.create(model=n, messages=messages, seed=1).choices
        for n in names
    ]
    before = ask()
    assert server.client.models.retrieve(names[0]).nip["engine_epoch"] == 1
    kill(server)
    server.start()
    assert ask() == before
    assert [server.client.models.retrieve(n).nip["engine_epoch"] for n in names] == [2, 2]


def test_a_damaged_adapter_is_not_served_and_says_so(make_server) -> None:
    server = make_server()
    good, bad = (server.train().fine_tuned_model for _ in range(2))
    server.stop()
    path = server.state_dir / "models" / bad[-12:] / "adapter.json"
    path.write_text(path.read_text().replace("generation", "generatiom"))
    server.start()
    assert good in [m.id for m in server.client.models.list()]
    with pytest.raises(openai.APIStatusError, match="damaged") as caught:
        server.client.models.retrieve(bad)
    assert caught.value.status_code == 503
    with pytest.raises(openai.APIStatusError, match="damaged") as caught:
        server.client.chat.completions.create(
            model=bad, messages=[{"role": "user", "content": "hi"}]
        )
    assert caught.value.status_code == 503


@pytest.mark.long
def test_another_base_model_leaves_old_jobs_and_adapters_alone(make_server) -> None:
    server = make_server(SLOW, is_apart=True)
    old = server.train().fine_tuned_model
    file_id = server.upload()
    waiting, unwanted = (server.create(file_id, **keyed(key)) for key in ("waits", "unwanted"))
    server.wait(waiting.id, "running")
    server.stop()
    other = make_server(SLOW, model="other", is_apart=True)
    assert [m.id for m in other.client.models.list()] == ["other"]
    job = other.wait(waiting.id, "queued")
    beside = other.train(model="other")  # it holds up no other
    assert beside.status == "succeeded"
    other.stop()
    other.start()
    warnings = [e.message for e in all_events(other, job.id) if e.level == "warn"]
    assert warnings == [
        "The job waits for a server with the base model 'sim'; this one has 'other'"
    ]
    assert other.client.fine_tuning.jobs.cancel(unwanted.id).status == "cancelled"
    other.stop()
    server.start()
    assert old in [m.id for m in server.client.models.list()]
    done = server.wait(waiting.id)
    assert done.status == "succeeded" and done.id == server.create(file_id, **keyed("waits")).id
    assert server.client.fine_tuning.jobs.retrieve(unwanted.id).status == "cancelled"
    owner.stop_state_dir(server.state_dir)


def all_events(server, job_id: str) -> list[Any]:
    return list(server.client.fine_tuning.jobs.list_events(job_id, limit=100))[::-1]


@pytest.mark.long
def test_an_end_that_can_not_be_written_stops_neither_the_job_nor_others(make_server) -> None:
    server = make_server(SLOW)
    job = server.create(server.upload())
    server.wait(job.id, "running")
    with sqlite3.connect(server.state_dir / "jobs.sqlite3") as database:
        database.execute(
            "CREATE TRIGGER full BEFORE UPDATE ON jobs WHEN new.status IN ('succeeded', 'failed') "
            "BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )
    broken = server.create(server.upload(examples(9)))
    deadline = time.monotonic() + 15
    while not any("can't be written" in e.message for e in all_events(server, job.id)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    log = (server.state_dir / "jobs" / job.id / "log.jsonl").read_text().splitlines()
    assert "succeeded" not in [json.loads(line)["event"] for line in log]
    assert server.client.fine_tuning.jobs.retrieve(broken.id).status == "validating_files"
    with sqlite3.connect(server.state_dir / "jobs.sqlite3") as database:
        database.execute("DROP TRIGGER full")
    assert server.wait(broken.id).error.code == "too_few_examples"
    assert server.wait(job.id).status == "succeeded"
    log = (server.state_dir / "jobs" / job.id / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in log].count("succeeded") == 1


@pytest.mark.long
def test_cancelling_a_job_that_is_not_running_leaves_nothing_of_it(make_server) -> None:
    server = make_server("training: {seconds: 3}\n")
    job = server.create(server.upload())
    directory = server.state_dir / "jobs" / job.id
    server.wait(job.id, "running")
    server.stop()  # which writes a checkpoint
    other = make_server(model="other")
    other.wait(job.id, "queued")
    assert (directory / "checkpoints").exists()
    other.client.fine_tuning.jobs.cancel(job.id)
    assert sorted(path.name for path in directory.iterdir() if path.is_dir()) == []


@pytest.mark.long
def test_the_result_file_has_every_step_that_the_trainer_left(make_server) -> None:
    server = make_server(SLOW)
    job = server.create(server.upload())
    server.wait(job.id, "running")
    rows = [
        {"step": step, "loss": 1 / step, "learning_rate": 0.1, "epoch": step, "tokens": step}
        for step in range(1, 61)
    ]
    (server.state_dir / "jobs" / job.id / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    (result_id,) = server.wait(job.id).result_files
    lines = server.client.files.content(result_id).text.splitlines()
    assert lines[0] == "step,train_loss,learning_rate,epoch,tokens"
    assert lines[1:] == [f"{n},{1 / n},0.1,{n},{n}" for n in range(1, 61)]
