"""A training service from outside the repository: the one of docs/services.md, and what is refused."""

import importlib
import json
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from doc_blocks import ROOT, blocks
from served_here import serve
from small_game import FEW, write_config

from nip_core import loop
from nip_core.errors import RunConflictError, SettingsError
from nip_core.game.render import Game
from nip_core.jobs.document import read_job
from nip_core.jobs.services import check_services
from nip_core.parameters import load_parameters
from nip_core.parameters.services.providers import find_provider
from nip_core.parameters.shutdowns import list_shutdown_warnings
from nip_core.parameters.stored import read_costing_settings
from nip_core.records.spending import Spent
from nip_core.run_store.run import RunStore
from nip_core.run_store.settings_difference import drop_same_files
from nip_core.run_store.store import open_store
from nip_core.session.prepare import prepare
from nip_core.session.user_files import find_user_files
from nip_lm_server.auth import KeyRing

BLOCKS = {
    b.options["file"]: b.text for b in blocks(ROOT / "docs/services.md") if "file" in b.options
}
# Ended between the creation of a job and the note of it, once.
MORTAL = '''

class Killed(BaseException):
    """Stands for SIGKILL: nothing of nip's catches it."""


KILLS = ["the first create"]


class MortalJobs(ShopJobs):
    async def create_job(self, *arguments):
        job = await super().create_job(*arguments)
        if KILLS:
            raise Killed(KILLS.pop())
        return job


class MortalShop(Shop):
    training = TrainingService(backend=MortalJobs, settings=("learning_rate", "lora_rank"))
'''


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """An address at which scripted replies answer."""
    async with serve(tmp_path / "server", keys=KeyRing(open_to_all=True)) as here:
        yield f"{here.url}/v1"


def write_shop(folder: Path, more: str = "", name: str = "Shop", **changes: Any) -> Path:
    """The page's file, with more in it, and settings that name a class of it."""
    (folder / "shop.py").write_text(BLOCKS["shop.py"] + more)
    settings = yaml.safe_load(BLOCKS["shop.yaml"])
    agent = {**settings["agents"]["_default"], "model_provider": f"{folder}/shop.py:{name}"}
    agent |= changes.pop("agent", {})
    return write_config(folder, agents={"_default": agent}, **changes)


async def test_a_service_from_a_file_trains_a_run_and_has_each_job_once_after_a_kill(
    tmp_path: Path, url: str
) -> None:
    config = write_shop(
        tmp_path,
        MORTAL,
        "MortalShop",
        agent={"base_url": url},
        rl=FEW | {"num_iterations": 2},
        dataset_options={"max_test_size": 4},
        fine_tuning={"poll_interval_s": 0.05, "settle_s": 0.05},
    )
    parameters = load_parameters(str(config))
    shop = importlib.import_module(find_provider(f"{tmp_path}/shop.py:MortalShop").__module__)
    # 1. The first create makes a job, and the process ends before it is on record.
    with pytest.raises(shop.Killed):
        await loop.train(parameters)
    first = next(iter(shop.JOBS.values()))
    # 2. The run goes on, adopts that job by its key, and makes each of the others once.
    summary = await loop.train(parameters)
    assert summary["status"] == "finished"
    run = RunStore(open_store(str(tmp_path / "runs")), "small")
    groups = ("prover", "verifier")
    records = [read_job(run, run.job(i, group)) for i in range(2) for group in groups]
    assert [record is not None and record.succeeded for record in records] == [True] * 4
    assert sorted(record.id for record in records if record) == sorted(shop.JOBS)
    adopted = [r for r in records if r and any("adopted" in event.what for event in r.events)]
    assert [record.id for record in adopted] == [first.id]
    # 3. It was sent what it takes, and no other setting.
    assert {record.key for record in records if record} == {
        job.metadata["nip_key"] for job in shop.JOBS.values()
    }
    assert records[0] is not None
    assert set(records[0].settings) == {"n_epochs", "nip"}
    assert set(records[0].settings["nip"]) == {"learning_rate", "lora_rank"}
    lines = next(iter(shop.FILES.values())).splitlines()
    assert all("messages" in json.loads(line) for line in lines)
    # 4. A run means one service: another text of its file is another run.
    (tmp_path / "shop.py").write_text(BLOCKS["shop.py"] + MORTAL + "\n# Changed.\n")
    with pytest.raises(RunConflictError, match=r"shop\.py, in which class MortalShop stands"):
        prepare(load_parameters(str(config)))


NO_LIST = """

class Deaf(Backend):
    upload = ShopJobs.upload
    create_job = ShopJobs.create_job
    retrieve_job = ShopJobs.retrieve_job
    cancel_job = ShopJobs.cancel_job

class Bad(Shop):
    training = TrainingService(backend=Deaf)
"""
NOT_ASYNC = """

class Blocking(ShopJobs):
    def job_events(self, job_id):
        return []

class Bad(Shop):
    training = TrainingService(backend=Blocking)
"""
WORDS = """

class Bad(Shop):
    training = TrainingService(backend=ShopJobs, settings=("lerning_rate",))
"""
NO_BACKEND = """

class Bad(Shop):
    training = TrainingService(backend=dict)
"""
NO_ARGUMENTS = """

class Alone(ShopJobs):
    def __init__(self):
        pass

class Bad(Shop):
    training = TrainingService(backend=Alone)
"""
ON_OUR_SERVER = """
from nip_core.parameters.services.providers import SelfHosted

class Bad(SelfHosted):
    training = TrainingService(backend=ShopJobs)
"""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            NO_LIST,
            r"agents\.prover\.model_provider: .*Bad can't train: Deaf has no method find_jobs",
        ),
        (NOT_ASYNC, r"Blocking\.job_events is no async function"),
        (WORDS, r"takes settings that no job has \(lerning_rate\); there are .*learning_rate"),
        (NO_BACKEND, r"its backend is no subclass of nip_core\.jobs\.job\.Backend"),
        (NO_ARGUMENTS, r"Bad can't train: Alone is made of an address and a key \(too many"),
        (ON_OUR_SERVER, r"the run starts a server for .*Bad, which trains its models, too"),
    ],
)
def test_a_service_that_cannot_train_is_refused_before_anything_is_sent(
    tmp_path: Path, more: str, message: str
) -> None:
    agent = {} if "SelfHosted" not in more else {"base_url": None}
    config = write_shop(tmp_path, more, "Bad", agent=agent)
    with pytest.raises(SettingsError, match=message):
        prepare(load_parameters(str(config)))
    if "SelfHosted" in more:
        return
    with pytest.raises(SettingsError, match=message):
        check_services(load_parameters(str(config)))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Shop", {"trainer": "pure_text_malt"}, r"needs training by dpo, .*\(got .*Shop, which takes supervised\); set SelfHosted"),
        ("Shop", {"agent": {"base_url": None}}, r"base_url is missing; .*Shop has no address of its own"),
        ("Shops", {}, r"it has no 'Shops'; it defines ShopJobs, Shop"),
        ("ShopJobs", {}, r"is not a subclass of nip_core\.parameters\.Provider"),
        ("Untrained", {}, r"its training is no nip_core\.parameters\.TrainingService"),
        ("Mute", {}, r"Mute can't fine-tune; set freeze_agent: true"),
        ("Foreign", {}, r"the dialect of .*Foreign is one of .*openai.* \(got 'klingon'\)"),
    ],
)  # fmt: skip
def test_settings_that_a_provider_from_a_file_cannot_serve_are_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    more = "\n\nclass Untrained(Shop):\n    training = ShopJobs\n"
    more += "\n\nclass Mute(Shop):\n    training = None\n"
    more += "\n\nclass Foreign(Shop):\n    dialect = 'klingon'\n"
    with pytest.raises(SettingsError, match=message):
        load_parameters(str(write_shop(tmp_path, more, name, **changes)))


def test_a_path_to_a_provider_is_looked_for_beside_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_shop(tmp_path)
    config.write_text(config.read_text().replace(f"{tmp_path}/shop.py", "shop.py"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    parameters = load_parameters(str(config))
    place = parameters.model_agents["prover"].model_provider.rpartition(":")[0]
    assert Path(place).samefile(tmp_path / "shop.py")
    assert [*find_user_files(Game(parameters))] == [place]
    assert parameters.model_agents["prover"].provider.__name__ == "Shop"
    # Two ways to one file are one provider, so a run goes on from either folder.
    key = "agents.prover.model_provider"
    assert drop_same_files({key: (f"{tmp_path}/shop.py:Shop", f"{place}:Shop")}) == {}
    assert drop_same_files({key: (f"{tmp_path}/shop.py:Shop", f"{place}:Other")})


def test_a_provider_with_an_address_and_a_key_is_asked_there(tmp_path: Path) -> None:
    more = """

class Locked(Shop):
    address, address_variable = "https://shop.example/v1", "SHOP_URL"
    key_variable = "SHOP_KEY"
"""
    agent = {"base_url": None, "model_name": "gpt-4o-mini-2024-07-18"}
    parameters = load_parameters(str(write_shop(tmp_path, more, "Locked", agent=agent)))
    assert list_shutdown_warnings(parameters, date(2027, 1, 1)) == []  # of OpenAI's models alone
    with pytest.raises(SettingsError, match="its key in the environment variable SHOP_KEY"):
        prepare(parameters, {})
    at = prepare(parameters, {"SHOP_KEY": "s"}).endpoints["prover"].control
    assert (at.base_url, at.api_key) == ("https://shop.example/v1", "s")
    with pytest.raises(SettingsError, match="environment variable SHOP_URL"):
        prepare(parameters, {"SHOP_KEY": "s", "SHOP_URL": "https://a:b@elsewhere.example/v1"})


def test_the_cost_of_a_run_on_record_is_read_without_its_providers_file(tmp_path: Path) -> None:
    shop = load_parameters(str(write_shop(tmp_path))).to_dict()
    spent = Spent(1, {"prover": (100, 10)}, {"prover": 5})
    for agent in shop["agents"].values():
        agent["model_provider"] = f"{tmp_path}/other.py:Shop"
    assert spent.usd(read_costing_settings(shop)) is None  # whether it sends bills is not known
    (tmp_path / "other.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    shop["prices"] = {"sim": {"prompt_usd": 1e6, "completion_usd": 0.0, "training_usd": 0.0}}
    assert spent.usd(read_costing_settings(shop)) == 100.0
    assert not (tmp_path / "ran").exists()
