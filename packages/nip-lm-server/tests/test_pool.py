"""Which engine answers for a model: adapters kept and loaded again, new bases, lent devices."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nip_base.api_errors import ApiError
from nip_base.spec import EngineSpec, ServerSpec
from nip_lm_server.engines.base import GenerationRequest
from nip_lm_server.engines.scripted.deterministic_engine import ADAPTER_FILE, BASE_FILE
from nip_lm_server.placement import make_slots
from nip_lm_server.serving import served_base
from nip_lm_server.serving.pool import EnginePool
from nip_lm_server.state.database import Database
from nip_lm_server.state.models import AdapterError, ModelStore

DEADLINE_S = 10.0


class Bench:
    """A pool over a state directory, with models put there as a finished job would."""

    def __init__(self, state: Path, spec: ServerSpec):
        state.mkdir(exist_ok=True)
        self.state = state
        self.database = Database(state / "jobs.sqlite3")
        self.models = ModelStore(state / "models", self.database)
        self.pool = EnginePool(make_slots(spec, {}, state), self.database, self.models)

    async def publish(
        self, name: str, *, kind: str = "adapter", base: str = "sim", generation: int = 1
    ) -> Any:
        """Commit a model, publish it and enter it in the table."""
        digest = f"{sum(name.encode()):06x}{len(name):02x}"
        output = self.state / "output"
        output.mkdir()
        adapter = {"generation": generation, "name": name}
        file = BASE_FILE if kind == "base" else ADAPTER_FILE
        (output / file).write_text(json.dumps(adapter))
        facts = {"name": name, "kind": kind, "base_model": base, "job": f"job-{name}"}
        manifest = self.models.commit(output, digest, facts)
        proof = await self.pool.publish(name, digest)
        if kind == "base":
            manifest = manifest.model_copy(update={"base_model": base})
        with self.database.transaction():
            self.database.insert(
                "jobs",
                id=f"job-{name}",
                payload_digest="",
                method="supervised",
                model=base,
                base_model=base,
                training_file="",
                settings="{}",
                seed=0,
                adapter_name=name,
                adapter_digest=digest,
                status="succeeded",
                created_at=0.0,
            )
            self.models.record(manifest, None, proof)
        return proof

    async def ask(self, model: str) -> str:
        request = GenerationRequest(model, ({"role": "user", "content": "Question: 1?"},), seed=1)
        async with self.pool.using(model) as engine:
            result = await engine.generate(request)
        assert result.model == model
        return result.choices[0].text

    def refused(self, model: str) -> ApiError:
        with pytest.raises(ApiError) as caught:
            self.pool.engine_for(model)
        return caught.value

    async def until(self, holds: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not holds():
                await asyncio.sleep(0.01)

        await asyncio.wait_for(wait(), DEADLINE_S)


@asynccontextmanager
async def bench(state: Path, **settings: Any) -> AsyncIterator[Bench]:
    one = Bench(state, ServerSpec("deterministic", "sim", **settings))
    try:
        await one.pool.start()
        yield one
    finally:
        await one.pool.stop()
        one.database.close()


async def test_an_adapter_that_was_unloaded_is_loaded_and_proved_when_it_is_asked_for(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, loaded_adapters=2) as one:
        for name in ("a", "b", "c"):
            await one.publish(name)
        engine = one.pool.engine_for("sim")
        assert engine.loaded_adapters() == ("b", "c")
        error = one.refused("a")
        assert (error.status, error.code) == (503, "model_loading")
        await one.ask("a")
        assert engine.loaded_adapters() == ("c", "a")
        # What was asked for last stays.
        await one.ask("c")
        await one.ask("b")
        assert set(engine.loaded_adapters()) == {"b", "c"}


async def test_many_who_ask_for_more_adapters_than_are_loaded_are_all_answered(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, loaded_adapters=1) as one:
        names = ["a", "b", "c", "d"]
        for name in names:
            await one.publish(name)
        asked = [one.ask(name) for name in names * 10]
        assert all(await asyncio.wait_for(asyncio.gather(*asked), DEADLINE_S))


async def test_jobs_are_trained_with_the_variables_of_the_template_that_is_served(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as one:
        slot = one.pool.base("sim").slot
        assert one.pool.training_place("sim").chat_template_kwargs == {}
        options = {"chat_template_kwargs": {"enable_thinking": False}}
        slot.spec = replace(slot.spec, options=options)
        assert one.pool.training_place("sim").chat_template_kwargs == {"enable_thinking": False}


async def test_an_adapter_in_use_is_not_unloaded(tmp_path: Path) -> None:
    async with bench(tmp_path, loaded_adapters=1) as one:
        await one.publish("a")
        async with one.pool.using("a") as engine:
            await one.publish("b")
            await one.ask("b")
            assert engine.loaded_adapters() == ("a", "b")
        await one.publish("c")
        assert engine.loaded_adapters() == ("c",)


async def test_a_start_restores_the_newest_adapters_and_proves_them_anew(tmp_path: Path) -> None:
    async with bench(tmp_path, loaded_adapters=2) as one:
        for name in ("a", "b", "c"):
            assert (await one.publish(name)).detail["engine_epoch"] == 1
    async with bench(tmp_path, loaded_adapters=2) as one:
        assert one.pool.is_served("b") and one.pool.is_served("c")
        row = one.models.get_row("c")
        assert row is not None and row.engine_epoch == 2


async def test_a_damaged_adapter_is_a_problem_and_the_others_answer(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        await one.publish("a")
        await one.publish("b")
        row = one.models.get_row("a")
        assert row is not None
        (one.models.path(row.digest) / ADAPTER_FILE).write_text("{}")
    async with bench(tmp_path) as one:
        assert one.pool.is_served("b")
        error = one.refused("a")
        assert (error.status, error.code) == (503, "model_not_served")
        assert "damaged" in error.message
        assert len(one.models.problems()) == 1


async def test_another_models_directory_under_a_models_name_is_a_problem(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        await one.publish("a")
        await one.publish("bb", generation=2)
        of_a, of_b = (one.models.path(one.models.get_row(name).digest) for name in ("a", "bb"))
        shutil.rmtree(of_a)
        shutil.copytree(of_b, of_a)
    async with bench(tmp_path) as one:
        assert one.pool.is_served("bb")
        assert "another model's files" in one.refused("a").message


async def test_an_unknown_model_is_a_404(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        error = one.refused("nobody")
        assert (error.status, error.code, error.param) == (404, "model_not_found", "model")


async def test_the_refusal_of_an_unknown_model_names_those_that_there_are(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        await one.publish("mine-1")
        base = one.pool.base_models()[0]
        assert one.refused("mine-2").message == (
            "The model 'mine-2' does not exist; did you mean 'mine-1'? This server has 'mine-1', "
            f"{base!r}; `nip serve --served-model-name NAME` gives its model another name"
        )


async def test_a_base_made_here_takes_the_slot_over_and_is_back_after_a_restart(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as one:
        await one.publish("a")
        before = await one.ask("a")
        await one.publish("ft:sim::base", kind="base", generation=3)
        assert one.pool.is_served("ft:sim::base")
        error = one.refused("a")
        assert (error.status, error.code) == (503, "engine_not_running")
        assert "POST /nip/engines/sim/start" in error.message
        assert "Retry-After" not in error.headers
        await one.publish("on-top", base="ft:sim::base")
    async with bench(tmp_path) as one:
        assert one.pool.is_served("ft:sim::base") and one.pool.is_served("on-top")
        assert not one.pool.is_served("sim")
        await one.pool.set_wanted("sim", "running")
        assert await one.ask("a") == before
        assert not one.pool.is_served("on-top")


async def test_a_base_that_made_room_comes_back_when_it_or_its_adapter_is_asked_for(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as one:
        await one.publish("a")
        answers = {model: await one.ask(model) for model in ("sim", "a")}
        await one.publish("new", kind="base", generation=3)
        answers["new"] = await one.ask("new")
        for model in ("sim", "new", "a", "new"):
            assert not one.pool.is_served(model)
            assert await one.ask(model) == answers[model]
    async with bench(tmp_path) as one:  # and after a restart
        assert not one.pool.is_served("sim")
        assert await one.ask("a") == answers["a"]


async def test_bases_that_take_turns_answer_all_who_ask(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        await one.publish("a")
        await one.publish("new", kind="base", generation=3)
        asked = [one.ask(model) for model in ("sim", "new", "a") * 20]
        assert all(await asyncio.wait_for(asyncio.gather(*asked), DEADLINE_S))


async def test_what_was_begun_is_answered_before_a_new_base_takes_the_place(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        async with one.pool.using("sim") as engine:
            publishing = asyncio.create_task(one.publish("new", kind="base"))
            await one.until(lambda: not one.pool.is_served("sim"))
            await asyncio.sleep(0.05)
            request = GenerationRequest("sim", ({"role": "user", "content": "?"},))
            assert (await engine.generate(request)).choices
        await publishing
        assert one.pool.is_served("new")


async def test_a_base_that_was_stopped_on_request_or_is_broken_takes_no_place(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as one:
        await one.publish("new", kind="base")
        await one.publish("newer", kind="base")
        await one.pool.set_wanted("sim", "stopped")
        with pytest.raises(ApiError) as caught:
            await one.ask("sim")
        assert caught.value.code == "engine_not_running"
        row = one.models.get_row("new")
        assert row is not None
        (one.models.path(row.digest) / BASE_FILE).write_text("{")
        for _ in range(2):
            with pytest.raises(ApiError) as caught:
                await one.ask("new")
            assert caught.value.status == 503
        assert await one.ask("newer")
        assert one.pool.base("newer").engine.epoch <= 2  # it made room once, for the broken one


async def test_a_base_does_not_come_back_into_a_training(tmp_path: Path) -> None:
    async with bench(tmp_path, share_device="yes") as one:
        await one.publish("new", kind="base")
        async with one.pool.training_on_device("new"):
            with pytest.raises(ApiError) as caught:
                await one.ask("sim")
            assert (caught.value.code, caught.value.status) == ("engine_training", 503)
            assert caught.value.headers["Retry-After"]
            assert one.pool.base("sim").engine.state == "stopped"
        assert one.pool.is_served("new")
        assert await one.ask("sim")


async def test_bases_run_beside_each_other_where_the_setting_allows(tmp_path: Path) -> None:
    async with bench(tmp_path, bases_at_once=2) as one:
        await one.publish("new", kind="base")
        assert one.pool.is_served("sim") and one.pool.is_served("new")


async def test_of_several_bases_the_one_asked_for_longest_ago_makes_room_and_the_first_one_last(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, bases_at_once=3) as one:
        await one.publish("a", kind="base")
        await one.publish("bb", kind="base")
        for asked in ("sim", "a"):
            await one.ask(asked)
        await one.publish("ccc", kind="base")
        assert [one.pool.is_served(name) for name in ("sim", "a", "bb", "ccc")] == [1, 1, 0, 1]


async def test_a_base_that_was_replaced_can_be_trained_after_a_restart(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        length = one.pool.training_place("sim").max_model_len
        await one.publish("new", kind="base")
    async with bench(tmp_path) as one:
        assert not one.pool.is_served("sim")
        assert one.pool.training_place("sim").max_model_len == length


async def test_a_base_that_is_withdrawn_gives_the_slot_back(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        await one.publish("new", kind="base")
        await one.pool.withdraw("new")
        assert one.pool.is_served("sim") and one.pool.base_models() == ("sim",)
        await one.pool.withdraw("new")  # and again is no error


async def test_a_base_that_is_not_proved_does_not_take_the_slot(tmp_path: Path) -> None:
    (tmp_path / "replies.yaml").write_text(
        "rules: []\ndefault: [{text: 'yes'}]\ntraining: {unproved_rate: 1.0}\n"
    )
    async with bench(tmp_path, replies=str(tmp_path / "replies.yaml")) as one:
        with pytest.raises(AdapterError):
            await one.publish("new", kind="base")
        assert one.pool.is_served("sim") and one.pool.base_models() == ("sim",)
        with pytest.raises(AdapterError, match="does not answer with the weights"):
            await one.publish("adapter")
        assert not one.pool.is_served("adapter")


async def test_engines_of_several_base_models_answer_beside_each_other(tmp_path: Path) -> None:
    more = (EngineSpec("deterministic", "other"),)
    async with bench(tmp_path, more_engines=more) as one:
        await one.publish("a")
        await one.publish("b", base="other")
        assert one.pool.engine_for("a") is one.pool.engine_for("sim")
        assert one.pool.engine_for("b") is one.pool.engine_for("other")
        assert one.pool.engine_for("a") is not one.pool.engine_for("b")
        await one.pool.set_wanted("other", "stopped")
        assert one.pool.is_served("a") and not one.pool.is_served("b")
        await one.pool.set_wanted("other", "running")
        assert one.pool.is_served("b")


async def test_only_an_engine_that_shares_the_device_leaves_it_for_a_training(
    tmp_path: Path,
) -> None:
    more = (EngineSpec("deterministic", "other"),)
    async with bench(tmp_path, share_device="yes", more_engines=more) as one:
        await one.publish("a")
        async with one.pool.training_on_device("sim"):
            error = one.refused("a")
            assert (error.status, error.code) == (503, "engine_training")
            assert "training" in error.message and error.headers["Retry-After"]
            assert one.pool.is_served("other")
            # What a job needs to know it can still learn.
            assert one.pool.training_place("sim").max_model_len > 0
        assert one.pool.is_served("a")


async def test_an_engine_put_to_sleep_refuses_and_wakes_with_its_adapters(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        await one.publish("a")
        await one.pool.set_wanted("sim", "sleeping")
        assert one.refused("a").code == "engine_not_running"
        await one.pool.set_wanted("sim", "running")
        assert one.pool.is_served("a")


async def test_after_a_sleep_the_adapters_used_last_are_proved_and_the_others_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_base, "RESTORED_AFTER_SLEEP", 2)
    async with bench(tmp_path, loaded_adapters=4) as one:
        for name in ("a", "b", "c", "d"):
            await one.publish(name)
        await one.ask("a")
        engine = one.pool.engine_for("sim")
        for _ in range(2):  # a sleep in which nothing was asked for in between changes nothing
            await one.pool.set_wanted("sim", "sleeping")
            await one.pool.set_wanted("sim", "running")
        assert [one.pool.is_served(name) for name in "abcd"] == [True, False, False, True]
        assert set(engine.loaded_adapters()) == set("abcd")
        await one.ask("b")
        assert one.pool.is_served("b")
        # Of those that are loaded too many, the first to go is one that nobody has asked for.
        await one.publish("e")
        assert set(engine.loaded_adapters()) == set("abde")
    async with bench(tmp_path, loaded_adapters=4) as one:
        assert all(one.pool.is_served(name) for name in "bcde")  # the newest after a start


async def test_a_base_made_here_that_was_damaged_is_a_problem_and_the_slot_serves_its_own(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as one:
        await one.publish("new", kind="base")
        row = one.models.get_row("new")
        assert row is not None
        (one.models.path(row.digest) / BASE_FILE).write_text('{"generation": 9}')
    async with bench(tmp_path) as one:
        assert one.pool.is_served("sim") and not one.pool.is_served("new")
        row = one.models.get_row("new")
        assert row is not None and "damaged" in row.problem


async def test_an_adapter_whose_trouble_has_passed_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path) as one:
        await one.publish("a")
        row = one.models.get_row("a")
        assert row is not None
        file = one.models.path(row.digest) / ADAPTER_FILE
        content = file.read_bytes()
        file.write_bytes(b"{}")
        await one.pool.set_wanted("sim", "sleeping")
        await one.pool.set_wanted("sim", "running")
        with pytest.raises(ApiError, match="damaged"):
            await one.ask("a")
        file.write_bytes(content)
        with pytest.raises(ApiError, match="damaged"):
            await one.ask("a")  # not looked at again so soon
        monkeypatch.setattr(served_base, "RETRY_PROBLEM_S", 0.0)
        await one.ask("a")
        assert one.models.problems() == []
