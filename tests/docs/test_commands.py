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
from doc_blocks import ROOT, Block, blocks, pages

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
UNTIL_S = 240
PAGE_S = 1500

RUN = {page: [b for b in blocks(page) if b.mark == "run"] for page in pages()}
RUN = {page: marked for page, marked in RUN.items() if marked}
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
    for command in ("nip", "python", "prefect", "transformers"):
        (tmp_path / ".venv/bin" / command).write_text(f'#!/bin/sh\nexec {bin_}/{command} "$@"\n')
        (tmp_path / ".venv/bin" / command).chmod(0o755)
    return tmp_path


def script(marked: list[Block], folder: Path) -> str:
    """The blocks of a page as a shell script."""
    lines = ["set -euo pipefail", f'export PATH="{folder}/.venv/bin:$PATH"']
    for name in sorted({b.options["with"] for b in marked if "with" in b.options}):
        (folder / ".prepare.py").write_text(PREPARE)
        lines.append(shlex.join(["python", ".prepare.py", *BEFORE[name]]))
    for number, block in enumerate(marked):
        lines.append(f"echo '== {block}' >&2")
        if "file" in block.options:
            (folder / f".block{number}").write_text(block.text)
            lines.append(f"cp .block{number} {block.options['file']}")
            continue
        text = block.text
        if block.language == "python":
            (folder / f".block{number}.py").write_text(text)
            text = f"python .block{number}.py\n"
        if "until" in block.options:
            lines += _until(text, block.options["until"], number)
        elif "exit" in block.options:
            code = block.options["exit"]
            lines += ["set +e", f"(\n{text})", "code=$?", "set -e", f"[ $code = {code} ]"]
        else:
            lines.append(text)
    return "\n".join(lines) + "\n"


def _until(text: str, said: str, number: int) -> list[str]:
    """Exports first, in this shell; then the block beside it, until it has said something."""
    exports = [line for line in text.splitlines() if line.startswith("export ")]
    others = [line for line in text.splitlines() if not line.startswith(("export ", "make "))]
    return [
        *exports,
        "(\n" + "\n".join(others) + f"\n) > .log{number} 2>&1 &",
        f"for i in $(seq {UNTIL_S}); do grep -q '{said}' .log{number} && break; sleep 1; done",
        f"grep -q '{said}' .log{number} || {{ cat .log{number} >&2; exit 1; }}",
    ]


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
