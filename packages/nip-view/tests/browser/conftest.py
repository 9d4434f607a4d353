"""`nip view` on a trained run, and a browser that looks at it (`make test-view`).

NIP_VIEW_ENV names what scripts/build_view.sh builds, NIP_CHROMIUM the browser (default
/usr/bin/chromium; Debian: apt-get install chromium). Nothing here skips: without them tests fail.
"""

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from browsing import CHROMIUM, ENVIRONMENT
from small_game import train_here, write_config

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(scope="session", autouse=True)
def all_is_here() -> None:
    for path, remedy in (
        (Path(CHROMIUM), "apt-get install chromium, or set NIP_CHROMIUM"),
        (ENVIRONMENT / "node_modules/axe-core", "run scripts/build_view.sh, or set NIP_VIEW_ENV"),
    ):
        if not path.exists():
            pytest.fail(f"{path} is not there: {remedy}")


@dataclass(frozen=True)
class Viewed:
    """A viewer that runs."""

    url: str
    origin: str
    token: str
    store: Path


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("viewed")
    rl = {"num_iterations": 2, "rollouts_per_iteration": 40, "num_epochs": 1}
    scale = {"shared_reward": True, "verifier_decision_scale": "likert_scale_5"}
    asyncio.run(train_here(write_config(folder, rl=rl, protocol_common=scale)))
    # Several channels, and more iterations than a narrow screen has room for.
    model = {"model_provider": "SelfHosted", "model_name": "deterministic"}
    longer = {
        "run_name": "longer",
        "interaction_protocol": "debate",
        "agents": {"_default": {**model, "max_tokens_per_message": 64}},
        "protocol_common": {},
        "rl": {**rl, "num_iterations": 5},
        "dataset_options": {"max_test_size": 8, "max_train_size": 200},
    }
    asyncio.run(train_here(write_config(folder, **longer)))
    return folder / "runs"


def start(store: Path) -> tuple[subprocess.Popen[str], Viewed]:
    """Start `nip view` as a user does, and read its address."""
    nip = str(Path(sys.executable).with_name("nip"))
    process = subprocess.Popen(
        [nip, "view", "--run-store", str(store), "--no-open"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    match = re.search(r"((http://[^/]+)/\?token=(\S+))", line)
    assert match, line
    return process, Viewed(match[1], match[2], match[3], store)


@pytest.fixture(scope="session")
def viewed(store: Path) -> Iterator[Viewed]:
    process, viewer = start(store)
    yield viewer
    process.terminate()
    process.wait(60)


@pytest.fixture
def going_on(store: Path, tmp_path: Path) -> Iterator[tuple[Viewed, Path]]:
    """A viewer of a run whose second training split is half played, and where the rest lies: of
    the split in ``split``, and the last iteration."""
    shutil.copytree(store, tmp_path / "runs", ignore=shutil.ignore_patterns("lm_server"))
    split = tmp_path / "runs/small/iterations/0001/rollouts/train"
    aside = tmp_path / "aside"
    (aside / "split").mkdir(parents=True)
    for path in [*split.glob("manifest.json"), *split.glob("*0001*")]:
        shutil.move(path, aside / "split" / path.name)
    shutil.move(tmp_path / "runs/small/iterations/0002", aside)
    process, viewer = start(tmp_path / "runs")
    yield viewer, aside
    process.terminate()
    process.wait(60)
