"""From a request to what is trained: every default filled in, what can't be trained refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nip_base import formats, wire
from nip_base.api_errors import ApiError
from nip_base.proof import Proof
from nip_base.spec import Capabilities
from nip_base.wire import CreateJobRequest, EffectiveSettings
from nip_lm_server.engines.scripted.reply_rules import ReplyFile
from nip_lm_server.jobs.run import DeviceTurn, JobRunner
from nip_lm_server.jobs.settings import name_param, resolve_request, sum_ranks
from nip_lm_server.jobs.table import JobTable
from nip_lm_server.jobs.training_process import SubprocessTrainer
from nip_lm_server.serving.training_place import TrainingPlace
from nip_lm_server.state.database import Database
from nip_lm_server.state.files import FileStore
from nip_lm_server.state.models import ModelStore
from nip_lm_server.training.deterministic_trainer import DeterministicTrainer

ROWS = [
    {"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}
] * 10


class Workshop:
    """A job table over real stores; its places are two bases, as large and on what is asked."""

    def __init__(self, directory: Path, device: str = "cpu", max_lora_rank: int = 32):
        self.directory = directory
        can = Capabilities(trains=True, max_lora_rank=max_lora_rank)
        self._place = TrainingPlace(
            "sim", "/base", device, SubprocessTrainer({}), can, max_model_len=512
        )
        self.database = Database(directory / "jobs.sqlite3")
        self.files = FileStore(directory / "files", self.database, 10**6)
        self.models = ModelStore(directory / "models", self.database)
        self.jobs = JobTable(self.database, self.files, self.models, self)
        self.training_file = asyncio.run(self._upload())
        self.bases = ["sim", "other"]
        self.wanted = "running"

    async def _upload(self) -> str:
        async def chunks() -> AsyncIterator[bytes]:
            yield formats.to_jsonl(ROWS)

        staged = await self.files.stage(chunks(), "train.jsonl")
        return str(self.files.admit(staged, "fine-tune")["id"])

    def base_models(self) -> tuple[str, ...]:
        return tuple(self.bases)

    def training_place(self, base_model: str) -> TrainingPlace:
        assert base_model in self.bases
        return self._place

    def base(self, base_model: str) -> "Workshop":
        assert base_model in self.bases
        return self

    def request(self, model: str = "sim", **fields: Any) -> CreateJobRequest:
        return CreateJobRequest.model_validate(
            {"model": model, "training_file": self.training_file, **fields}
        )

    def settings(self, model: str = "sim", **fields: Any) -> EffectiveSettings:
        return resolve_request(self.request(model, **fields), self, self.models).settings

    def refusal(self, model: str = "sim", **fields: Any) -> ApiError:
        before = len(self.database.fetch_all("SELECT id FROM jobs"))
        with pytest.raises(ApiError) as caught:
            request = self.request(model, **fields)
            self.jobs.create(request, request.model_dump(), None)
        assert len(self.database.fetch_all("SELECT id FROM jobs")) == before
        assert caught.value.status == 400
        return caught.value

    def trained(self, model: str = "sim", **fields: Any) -> str:
        """A model as a job that succeeded leaves it; its name."""
        request = self.request(model, **fields)
        row = self.jobs.get_row(self.jobs.create(request, request.model_dump(), None)[0]["id"])
        settings = row.read_settings()
        parent = self.models.get_row(row.parent) if row.parent else None
        output = self.directory / "output"
        output.mkdir()
        (output / "weights").write_text(row.id)
        facts = {
            "kind": settings.result,
            "name": row.adapter_name,
            "base_model": row.base_model,
            "job": row.id,
            "settings": settings.model_dump(),
            "lora_rank": sum_ranks(
                settings, self.models.manifest(parent.digest) if parent else None
            ),
        }
        manifest = self.models.commit(output, row.adapter_digest, facts)
        self.models.record(manifest, row.parent, Proof(matches=True))
        self.jobs.cancel(row.id)  # it is no unfinished job that needs anything
        if settings.result == "base":
            self.bases.append(row.adapter_name)
        return str(row.adapter_name)


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_every_default_of_each_method_is_filled_in(workshop: Workshop) -> None:
    common = {
        "n_epochs": 3,
        "batch_size": 8,
        "learning_rate_multiplier": 1.0,
        "use_lora": True,
        "lora_rank": 16,
        "lora_alpha": 32.0,
        "lora_dropout": 0.0,
        "lora_target_modules": "all-linear",
        "max_length": 512,
        "warmup_ratio": 0.0,
        "lr_scheduler": "linear",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "start_from": "base",
        "result": "adapter",
        "precision": "auto",
        "quantization": "none",
        "optimizer": "auto",
    }
    own: dict[str, dict[str, Any]] = {
        "supervised": {"learning_rate": 2e-4},
        "dpo": {
            "learning_rate": 5e-5,
            "beta": 0.1,
            "dpo_reference": "start",
            "dpo_sft_weight": 0.0,
        },
        "trajectories": {
            "learning_rate": 1e-4,
            "clip_low": 0.2,
            "clip_high": 0.2,
            "kl_penalty": 0.0,
        },
    }
    for method, expected in own.items():
        settings = workshop.settings(method={"type": method}).model_dump(exclude_none=True)
        assert settings == {**common, **expected}


def test_what_is_asked_for_is_what_is_trained(workshop: Workshop) -> None:
    nip = {
        "learning_rate": 0.01, "lora_rank": 4, "lora_alpha": 12.0, "lora_dropout": 0.5,
        "lora_target_modules": ["q_proj"], "max_length": 64, "warmup_ratio": 0.1,
        "lr_scheduler": "cosine", "weight_decay": 0.2, "max_grad_norm": 3.0,
        "precision": "bfloat16", "optimizer": "sgd", "gradient_checkpointing": True,
        "checkpoint_steps": 7, "tokens_per_pass": 4096, "attention": "eager",
    }  # fmt: skip
    asked = {"n_epochs": 2, "batch_size": 5, "learning_rate_multiplier": 0.5, "beta": 0.7}
    method = {"type": "dpo", "dpo": {"hyperparameters": asked}}
    dpo = {"dpo_reference": "base", "dpo_sft_weight": 0.3, "dpo_label_smoothing": 0.2}
    settings = workshop.settings(method=method, nip={**nip, **dpo}).model_dump()
    assert settings["learning_rate"] == 0.005
    for name, value in {**nip, **asked, **dpo}.items():
        if name != "learning_rate":
            assert settings[name] == value, name
    given = {"clip_low": 0.1, "clip_high": 0.4, "kl_penalty": 0.3, "advantage": "group"}
    method = {"type": "trajectories", "trajectories": {"hyperparameters": given}}
    assert given.items() <= workshop.settings(method=method).model_dump().items()
    assert workshop.settings(nip={"max_length": 512}).max_length == 512
    refusal = workshop.refusal(nip={"max_length": 513})
    assert refusal.param == "nip.max_length"
    assert "513" in refusal.message and "512" in refusal.message


@pytest.mark.parametrize("method", wire.METHODS)
def test_the_old_place_for_hyperparameters_serves_every_method(
    workshop: Workshop, method: str
) -> None:
    old = {"n_epochs": 4, "batch_size": 2, "learning_rate_multiplier": 3.0}
    for block in ({}, {method: {}}, {method: {"hyperparameters": None}}):
        settings = workshop.settings(method={"type": method, **block}, hyperparameters=old)
        assert (settings.n_epochs, settings.batch_size) == (4, 2)
        assert settings.learning_rate == pytest.approx(3 * wire.DEFAULT_LEARNING_RATES[method])
    both = {"type": method, method: {"hyperparameters": {"n_epochs": 1}}}
    assert workshop.refusal(method=both, hyperparameters=old).param == "hyperparameters"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"method": {"type": "dpo", "supervised": {}}}, "method.supervised"),
        ({"method": {"type": "supervised", "dpo": {}}}, "method.dpo"),
        ({"method": {"type": "reinforcement", "reinforcement": {"grader": {}}}}, "method.type"),
        ({"method": {"type": "ppo"}}, "method.type"),
        ({"nip": {"dpo_reference": "base"}}, "nip.dpo_reference"),
        ({"nip": {"dpo_reference": "start"}}, "nip.dpo_reference"),  # although it is the default
        ({"nip": {"dpo_sft_weight": 1.0}}, "nip.dpo_sft_weight"),
        ({"nip": {"dpo_label_smoothing": 0.1}}, "nip.dpo_label_smoothing"),
        ({"nip": {"stack_overflow": "merge"}}, "nip.stack_overflow"),
        ({"nip": {"packing": True}, "method": {"type": "dpo"}}, "nip.packing"),
        ({"nip": {"use_lora": False, "lora_rank": 4}}, "nip.lora_rank"),
        ({"nip": {"use_lora": False, "lora_target_modules": ["q"]}}, "nip.lora_target_modules"),
        ({"nip": {"lora_target_modules": []}}, "nip.lora_target_modules"),
        ({"nip": {"lora_target_modules": [""]}}, "nip.lora_target_modules"),
        ({"nip": {"lora_target_modules": ".*_proj"}}, "nip.lora_target_modules"),
        ({"nip": {"lora_rank": 33}}, "nip.lora_rank"),
        ({"nip": {"quantization": "4bit"}}, "nip.quantization"),
        ({"nip": {"optimizer": "adamw_8bit"}}, "nip.optimizer"),
        ({"nip": {"optimizer": "paged_adamw_8bit"}}, "nip.optimizer"),
        ({"nip": {"precision": "float16"}}, "nip.precision"),
        ({"nip": {"start_from": "continue"}}, "nip.start_from"),
        ({"nip": {"start_from": "stack"}}, "nip.start_from"),
        ({"model": "nobody"}, "model"),
    ],
)
def test_what_can_not_be_trained_is_refused_with_its_parameter(
    workshop: Workshop, fields: dict[str, Any], param: str
) -> None:
    assert workshop.refusal(**fields).param == param


def test_what_a_training_process_names_is_named_as_clients_do() -> None:
    assert name_param("dpo", "lora_target_modules") == "nip.lora_target_modules"
    assert name_param("dpo", "hyperparameters.lora_rank") == "nip.lora_rank"
    assert name_param("dpo", "batch_size") == "method.dpo.hyperparameters.batch_size"
    assert name_param("dpo", "training_file") == "training_file"
    assert name_param("dpo", None) is None


def test_a_job_tells_that_it_will_start_an_engine_that_is_not_wanted(workshop: Workshop) -> None:
    workshop.wanted = "stopped"
    request = workshop.request()
    job, _ = workshop.jobs.create(request, request.model_dump(), None)
    events = workshop.jobs.events.list_page(job["id"], limit=9, after=None)["data"]
    (warning,) = [event["message"] for event in events if event["level"] == "warn"]
    assert "engine of 'sim' is stopped" in warning and "is stopped" in warning
    workshop.wanted = "running"
    assert resolve_request(request, workshop, workshop.models).note is None


def test_what_needs_cuda_is_taken_where_there_is_some(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, device="cuda:0")
    nip = {"quantization": "4bit", "optimizer": "paged_adamw_8bit", "precision": "float16"}
    assert nip.items() <= workshop.settings(nip=nip).model_dump().items()
    refusal = workshop.refusal(nip={"quantization": "8bit", "use_lora": False})
    assert refusal.param == "nip.quantization"
    adapter = workshop.trained()
    refusal = workshop.refusal(adapter, nip={"quantization": "8bit", "start_from": "stack"})
    assert refusal.param == "nip.quantization"


def test_full_training_makes_a_base_model_without_lora_settings(workshop: Workshop) -> None:
    plan = resolve_request(workshop.request(nip={"use_lora": False}), workshop, workshop.models)
    settings = plan.settings
    assert plan.note is not None and plan.note.startswith("Every weight is trained")
    assert settings.result == "base" and settings.learning_rate == pytest.approx(2e-5)
    shape = [settings.lora_rank, settings.lora_alpha, settings.lora_dropout]
    assert [*shape, settings.lora_target_modules] == [None] * 4


def test_an_adapter_is_continued_left_or_stacked_upon(workshop: Workshop) -> None:
    adapter = workshop.trained("other", nip={"lora_rank": 4, "lora_alpha": 12.0}, suffix="a")
    assert adapter.startswith("ft:other:a:")
    plans = {
        start: resolve_request(workshop.request(adapter, nip=nip), workshop, workshop.models)
        for start, nip in {
            "default": {},
            "continue": {"start_from": "continue", "lora_dropout": 0.5},
            "base": {"start_from": "base"},
            "stack": {"start_from": "stack", "lora_rank": 28},
            "full": {"use_lora": False},
        }.items()
    }
    assert {name: plan.base_model for name, plan in plans.items()} == dict.fromkeys(plans, "other")
    parents = {name for name, plan in plans.items() if plan.parent == adapter}
    assert parents == {"default", "continue", "stack", "full"} and plans["base"].parent is None
    shape = plans["default"].settings
    assert (shape.start_from, shape.lora_rank, shape.lora_alpha) == ("continue", 4, 12.0)
    assert plans["continue"].settings.lora_dropout == 0.5
    fresh = plans["base"].settings
    assert (fresh.start_from, fresh.lora_rank, fresh.lora_alpha) == ("base", 16, 32.0)
    stacked = plans["stack"].settings
    assert (stacked.result, stacked.lora_rank, stacked.lora_alpha) == ("adapter", 28, 56.0)
    full = plans["full"].settings
    assert (full.start_from, full.result, full.lora_rank) == ("continue", "base", None)

    for name, value in {"lora_rank": 8, "lora_alpha": 8.0, "lora_target_modules": ["q"]}.items():
        assert workshop.refusal(adapter, nip={name: value}).param == f"nip.{name}"
    refusal = workshop.refusal(adapter, nip={"start_from": "stack", "use_lora": False})
    assert refusal.param == "nip.start_from"


def test_a_stack_that_gets_too_high_is_merged_or_refused(workshop: Workshop) -> None:
    first = workshop.trained(nip={"lora_rank": 16})
    stack = {"start_from": "stack", "lora_rank": 16}
    second = workshop.trained(first, nip=stack)
    assert workshop.models.get_row(second).kind == "adapter"
    # 32 is the largest rank here, and the adapter that was stacked has it.
    continued = workshop.settings(second)
    assert (continued.start_from, continued.lora_rank) == ("continue", 32)
    request = workshop.request(second, nip={**stack, "lora_rank": 1})
    plan = resolve_request(request, workshop, workshop.models)
    assert plan.settings.result == "base" and "merged" in (plan.note or "")
    row = workshop.jobs.create(request, request.model_dump(), None)[0]
    assert row["nip"]["result_kind"] == "base" and row["nip"]["result"] is None
    events = workshop.jobs.events.list_page(row["id"], limit=9, after=None)["data"]
    assert [event["message"] for event in events if event["level"] == "warn"] == [plan.note]
    refusal = workshop.refusal(second, nip={**stack, "stack_overflow": "refuse"})
    assert refusal.param == "nip.stack_overflow"
    assert "rank 16 over rank 32 is more than the 32" in refusal.message


def test_a_base_model_that_was_made_here_is_a_base_model(workshop: Workshop) -> None:
    base = workshop.trained("other", nip={"use_lora": False}, suffix="one")
    for nip in ({}, {"start_from": "base"}, {"start_from": "continue"}):
        plan = resolve_request(workshop.request(base, nip=nip), workshop, workshop.models)
        assert (plan.base_model, plan.parent, plan.named_after) == (base, base, "other")
        assert (plan.settings.start_from, plan.settings.result) == ("base", "adapter")
    assert workshop.refusal(base, nip={"start_from": "stack"}).param == "nip.start_from"
    # Its adapter lies over it, and so on: names tell the configured base, rows the real one.
    adapter = workshop.trained(base, suffix="two")
    assert adapter.startswith("ft:other:two:")
    assert workshop.models.get_row(adapter).base_model == base
    again = workshop.trained(adapter, nip={"use_lora": False}, suffix="three")
    assert again.startswith("ft:other:three:")
    assert workshop.models.find_user(base) is not None


def test_a_model_with_a_problem_is_not_trained_on(workshop: Workshop) -> None:
    adapter = workshop.trained()
    workshop.models.note_problem(adapter, "it is damaged")
    refusal = workshop.refusal(adapter)
    assert (refusal.code, refusal.param) == ("model_not_served", "model")
    workshop.models.mark_deleted(adapter)
    assert workshop.refusal(adapter).code == "model_not_found"


class Device(Workshop):
    """A workshop whose device is lent; `committed` is what is on disk when it is given back."""

    committed: bool

    @asynccontextmanager
    async def training_on_device(self, base_model: str) -> AsyncIterator[None]:
        yield
        (row,) = self.database.fetch_all("SELECT * FROM jobs")
        self.committed = self.models.is_committed(row["adapter_digest"])

    async def wait_until_back(self, base_model: str) -> None: ...

    async def publish(self, name: str, digest: str) -> Proof:
        return Proof(matches=True)

    async def withdraw(self, name: str) -> None: ...


def test_a_model_is_committed_before_the_engine_comes_back(tmp_path: Path) -> None:
    workshop = Device(tmp_path)
    trainer = DeterministicTrainer(ReplyFile.model_validate({"training": {"seconds": 0}}))
    request = workshop.request()
    id = workshop.jobs.create(request, request.model_dump(), None)[0]["id"]
    workshop.jobs.transition(id, ("validating_files",), "queued")
    (tmp_path / "jobs").mkdir()
    runner = JobRunner(tmp_path / "jobs", workshop.jobs)
    place = replace(workshop.training_place("sim"), trainer=trainer)

    async def nobody_is_next() -> bool:
        return False

    asyncio.run(runner.run(workshop.jobs.get_row(id), place, DeviceTurn(nobody_is_next)))
    assert workshop.jobs.get_row(id).status == "succeeded", workshop.jobs.get_row(id).error
    assert workshop.committed
