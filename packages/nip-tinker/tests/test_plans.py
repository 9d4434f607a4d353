"""The parts of a job that need no service: its steps, rates, gradients, and refused settings."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import s3_server

from nip_cli.printing.plans_and_runs import show_plan
from nip_core.errors import LeaseError, SettingsError
from nip_core.jobs.job import Refused
from nip_core.jobs.services import check_services
from nip_core.parameters import load_parameters
from nip_core.parameters.services.providers import Tinker
from nip_core.run_store.store import open_store
from nip_tinker.backend import make_plan
from nip_tinker.options import Options, read_options
from nip_tinker.record.notes import JobNote
from nip_tinker.record.run_files import RunFiles
from nip_tinker.record.steps import Plan, Steps
from nip_tinker.training.driver import choose_size
from nip_tinker.training.preferences import weigh_pairs

PLAN = Plan(method="supervised", seed=1, n_epochs=3, batch_size=4, learning_rate=1e-3, lora_rank=8)

TINKER = (
    "agents._default.use_dummy_api=false",
    "agents._default.model_provider=Tinker",
    "agents._default.fine_tune_from_scratch=false",
)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.2])
def test_rates_are_those_of_transformers(schedule: str, warmup: float) -> None:
    import torch
    from transformers import get_scheduler

    plan = PLAN.model_copy(update={"lr_scheduler": schedule, "warmup_ratio": warmup})
    steps = Steps(plan, 21)
    assert steps.total == 18
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], plan.learning_rate)
    scheduler = get_scheduler(schedule, optimizer, -(-warmup * 18 // 1), 18)
    expected = []
    for _ in range(18):
        expected.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert [steps.find_rate(step) for step in range(18)] == pytest.approx(expected)


def test_each_epoch_has_each_example_once_in_an_order_of_its_own() -> None:
    steps = Steps(PLAN, 21)
    epochs = [
        [index for step in range(6) for index in steps.list_examples(6 * epoch + step)]
        for epoch in range(3)
    ]
    assert all(sorted(epoch) == list(range(21)) for epoch in epochs)
    assert epochs[0] != epochs[1] and epochs == [
        [index for step in range(6) for index in Steps(PLAN, 21).list_examples(6 * epoch + step)]
        for epoch in range(3)
    ]


def test_weights_of_pairs_are_the_gradient_of_the_loss() -> None:
    import torch

    rng = np.random.default_rng(0)
    preferred, rejected, base = (
        rng.normal(-9, 3, 5),
        rng.normal(-9, 3, 5),
        rng.normal(-9, 3, (5, 2)),
    )
    loss, weights = weigh_pairs(preferred, rejected, [tuple(row) for row in base], 0.3)
    p, r = (torch.tensor(values, requires_grad=True) for values in (preferred, rejected))
    margin = (p - torch.tensor(base[:, 0])) - (r - torch.tensor(base[:, 1]))
    expected = -torch.nn.functional.logsigmoid(0.3 * margin).mean()
    expected.backward()
    assert p.grad is not None and r.grad is not None
    assert loss == pytest.approx(expected.item())
    assert list(weights) == pytest.approx((-p.grad).tolist())
    assert list(weights) == pytest.approx(r.grad.tolist())


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("agents._default.lora_alpha=64", "lora_alpha is 64, which Tinker can't carry"),
        ("agents._default.lora_alpha_scale=2", "lora_alpha_scale is 2"),
        ("agents._default.lora_dropout=0.2", "lora_dropout is 0.2"),
        ("agents._default.use_lora=false", "use_lora is False"),
        ("agents._default.stack_lora_adapters=true", "stack_lora_adapters is True"),
        ("fine_tuning.validation_fraction=0.1", "validation_fraction is 0.1"),
        ("fine_tuning.tokens_per_pass=512", "tokens_per_pass is 512"),
        ("fine_tuning.gradient_checkpointing=true", "gradient_checkpointing is True"),
    ],
)
def test_settings_that_the_wire_can_t_carry_are_refused_by_name(setting: str, words: str) -> None:
    given = [*TINKER, "run_name=refused"]
    check_services(load_parameters("deterministic", given))
    with pytest.raises(SettingsError, match=words):
        check_services(load_parameters("deterministic", [*given, setting]))


def test_options_of_a_class_over_the_provider_are_read_and_unknown_ones_refused() -> None:
    class Mine(Tinker):
        options: ClassVar = {"block_minutes": 5, "tokenizer": "here"}

    class Wrong(Tinker):
        options: ClassVar = {"minutes": 5}

    assert read_options(Mine) == Options(block_minutes=5, tokenizer="here")
    with pytest.raises(SettingsError, match="no 'minutes'; there are block_minutes"):
        read_options(Wrong)
    Mine.options = {"block_usd": 0.1}
    with pytest.raises(SettingsError, match="block_usd takes train_usd"):
        read_options(Mine)


def test_a_dry_run_shows_steps_blocks_and_price(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [*TINKER, "rl.num_iterations=2", "rl.num_epochs=3", "run_name=planned"]
    parameters = load_parameters("deterministic", settings)
    model = parameters.group_parameters("verifier").model_name
    price = f"prices={{{model}: {{prompt_usd: 0, completion_usd: 0, training_usd: 2}}}}"
    show_plan(load_parameters("deterministic", [*settings, price]), as_json=True)
    printed = json.loads(capsys.readouterr().out)
    plan, estimate = printed["trainings"]["verifier"], printed["estimate"]
    usd = 2 * estimate["expected_training_by_group"]["verifier"] / 1e6
    rows = parameters.rollouts_per_iteration
    assert rows is not None and estimate["read_examples"]["verifier"] == [3 * rows] * 2
    steps = 2 * (math.ceil(3 * rows / plan["batch_size"]) + 2)
    assert (plan["jobs"], plan["most_steps"], plan["first_steps"]) == (2, steps, 10)
    assert plan["expected_usd"] == pytest.approx(usd)
    show_plan(load_parameters("deterministic", [*settings, price]), as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"verifier is trained by steps: 2 jobs, at most {steps:,} steps" in shown
    assert f"expected to cost ${usd:,.2f}; a block" in shown


def test_blocks_are_as_large_as_time_and_money_allow() -> None:
    options = Options(block_usd=0.05, train_usd=10.0, block_minutes=1)
    job = JobNote(
        key="key", metadata={}, plan=PLAN, parent="tiny", file="data", created_at=0.0,
        steps=100, tokens=100_000,
    )  # fmt: skip
    assert choose_size(options, job, None) == 5  # a step of a thousand tokens is one cent
    assert choose_size(Options(block_minutes=1), job, None) == 10


def test_a_budget_wants_the_price_of_training_if_only_0() -> None:
    settings = [*TINKER, "run_name=capped", "budget.usd=1"]
    model = load_parameters("deterministic", settings[:-1]).group_parameters("verifier").model_name
    price = f"prices={{{model}: {{prompt_usd: 1, completion_usd: 2}}}}"
    with pytest.raises(SettingsError, match=r"completion_usd: 2.0, training_usd: T"):
        load_parameters("deterministic", [*settings, price])
    free = price.replace("}}", ", training_usd: 0}}")
    assert load_parameters("deterministic", [*settings, free]).budget.usd == 1
    frozen = "agents._default.freeze_agent=true"
    load_parameters("deterministic", [*settings, price, frozen])


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where runs are kept."""
    if request.param == "disk":
        yield str(tmp_path)
        return
    with s3_server.serve() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield s3_server.make_bucket(environment, "bucket")


def test_a_file_that_another_runner_wrote_is_not_replaced(place: str, tmp_path: Path) -> None:
    first, second = (RunFiles(open_store(place), "run/training") for _ in range(2))
    first.write("job.json", b"1")
    with pytest.raises(LeaseError, match="another runner"):
        second.write("job.json", b"2")
    assert second.read("job.json") == b"1"
    second.write("job.json", b"3")
    with pytest.raises(LeaseError):
        first.write("job.json", b"4")
    assert first.list() == ["job.json"] and first.size("job.json") == 1
    first.copy_in("files/data.jsonl", b"rows")
    second.copy_out("files/data.jsonl", tmp_path / "copied")
    assert (tmp_path / "copied").read_bytes() == b"rows" and first.list("files") != []
    second.remove("files/data.jsonl")
    assert first.size("files/data.jsonl") is None and first.read("none.json") is None


def test_a_job_that_stacks_adapters_is_refused() -> None:
    from driven_jobs import make_spec

    from nip_base.wire import NipSettings

    spec = make_spec("supervised", nip=NipSettings.model_construct(start_from="stack"))
    with pytest.raises(Refused, match="start_from"):
        make_plan(spec)
