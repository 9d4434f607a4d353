"""What the pages tell readers to type runs, in an empty folder, as it stands there (`make test-docs`).

The folder has the files of a checkout but no runs; `nip` is this environment's. Blocks of a page run
one after another in one shell, so that what a block exports, starts or writes is there for the next.
A page with `with=quickstart` finds a run of that name: the quick start's game without a model, small;
one with `with=trained` the quick start itself, with the real tiny model, one small iteration of it.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT, Block, blocks, make_script, pages

SMALL = (
    "lm_server.engine=deterministic",
    "agents._default.model_name=deterministic",
    "rl.rollouts_per_iteration=20",
    "dataset_options.max_test_size=20",
    "fine_tuning.poll_interval_s=0.1",
    "agents.verifier.num_epochs=1",
)
TRAINED = (
    "rl.num_iterations=1",
    "rl.rollouts_per_iteration=40",
    "dataset_options.max_test_size=20",
    "agents.verifier.num_epochs=1",
)
BEFORE = {"quickstart": SMALL, "trained": TRAINED}
PREPARE = """\
import asyncio, sys
from nip_core.loop import train
from nip_core.parameters import load_parameters
asyncio.run(train(load_parameters("quickstart", sys.argv[1:])))
"""  # without Prefect, which takes longer to start than such a run
PAGE_S = 1500

RUN = {page: [b for b in blocks(page) if b.mark == "run"] for page in pages()}
# What needs an extra is run in its own environment, by scripts/release.py.
RUN = {
    page: marked
    for page, marked in RUN.items()
    if marked and not any("extra" in block.options for block in marked)
}
AT_PORT_8000 = pytest.mark.xdist_group("port 8000")  # servers, as the pages start them
PAGES = [
    pytest.param(
        page,
        id=page.relative_to(ROOT).as_posix(),
        marks=AT_PORT_8000 if any("until" in block.options for block in marked) else (),
    )
    for page, marked in RUN.items()
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a checkout has, as links; files are written beside them."""
    for name in ("deployments", "docs", "benchmarks", "scripts", "tests", "nip_core"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    bin_ = Path(sys.executable).parent
    for command in ("nip", "nip-grade", "nip-lm-server", "python", "prefect", "transformers"):
        (tmp_path / ".venv/bin" / command).write_text(f'#!/bin/sh\nexec {bin_}/{command} "$@"\n')
        (tmp_path / ".venv/bin" / command).chmod(0o755)
    return tmp_path


def script(marked: list[Block], folder: Path) -> str:
    """The blocks of a page as a shell script, with the runs that they begin with."""
    begin = [f'export PATH="{folder}/.venv/bin:$PATH"']
    for name in sorted({b.options["with"] for b in marked if "with" in b.options}):
        (folder / ".prepare.py").write_text(PREPARE)
        begin.append(shlex.join(["python", ".prepare.py", *BEFORE[name]]))
    return make_script(marked, folder, begin)


@pytest.mark.timeout(PAGE_S + 60)
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_to_type_runs(page: Path, folder: Path) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NIP_", "OPENAI_", "OPENROUTER_", "PREFECT_API"))
    }
    environment |= {"HF_HUB_OFFLINE": "1", "PREFECT_HOME": str(folder / ".prefect")}
    environment |= {"NIP_API_KEY": "choose-a-key", "MPLBACKEND": "agg"}
    process = subprocess.Popen(
        ["bash", "-c", script(RUN[page], folder)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=PAGE_S)
    finally:  # servers that the page started
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        shutil.rmtree(folder / ".prefect", ignore_errors=True)
    assert process.returncode == 0, said[-6000:]
