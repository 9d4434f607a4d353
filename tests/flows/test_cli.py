"""The command: exit codes that mean something, one clear line for each wrong input."""

import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from small_game import write_config
from small_source import human_eval_rows, write_rows
from unprivileged import end_override

from nip_cli.cli import exit_code, main
from nip_cli.printing.plans_and_runs import show_run
from nip_core import DISTRIBUTION
from nip_core.errors import (
    BudgetError,
    CorruptionError,
    JobError,
    LeaseError,
    StageError,
    StoreError,
)
from nip_core.parameters import load_parameters
from nip_core.run_store.lease import acquire
from nip_core.run_store.store import open_store
from nip_lm_server.state.directory import read_card

DATASET = {
    "question": ["Return x plus 1.", "Return x plus 2."] * 10,
    "solution": [f"def f(x):\n    return x + {i}" for i in range(20)],
    "y": [1, 0] * 10,
}


def fresh_nip(*arguments: str, environment=None, before=None) -> subprocess.CompletedProcess:
    """The command as a user starts it, in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-m", "nip_cli.cli", *arguments],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=before,
    )


def one_line(done: subprocess.CompletedProcess, code: int = 2) -> str:
    """What a command that was refused said."""
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("nip: "), done.stderr
    return lines[0]


@pytest.fixture(scope="module")
def refused(nip) -> Callable[..., str]:
    def run(*arguments: str, code: int = 2, environment=None) -> str:
        return one_line(nip(*arguments, environment=environment), code)

    return run


def dataset(folder: Path, **changes) -> str:
    """A user's dataset directory; `changes` replace columns of its training split."""
    target = folder / "data"
    target.mkdir()
    for number, split in enumerate(("train", "validation", "test")):
        columns = {
            "question": [f"{q} ({split} {number})" for q in DATASET["question"]],
            "solution": [f"{s}  # {split}" for s in DATASET["solution"]],
            "y": DATASET["y"],
            **(changes if split == "train" else {}),
        }
        columns = {k: v for k, v in columns.items() if v is not None}
        pq.write_table(pa.table(columns), target / f"{split}.parquet")
    return str(target)


def test_the_plan_is_shown_and_nothing_is_started(tmp_path):
    config = write_config(tmp_path)
    done = fresh_nip("train", str(config), "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["estimate"]["train_episodes"] == 100
    assert plan["estimate"]["test_episodes"] == 60
    assert plan["estimate"]["calls"] == 160 * 3
    assert plan["estimate"]["usd"] == 0
    assert plan["parameters"]["rl"]["num_iterations"] == 2
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "never began"),
        (("config.yaml",), "never began"),
        (("lm_server/api_key", "fences/0001"), "never began"),
        (("lm_server/api_key", "lease"), "is only starting"),
        (("iterations/0000/models.json",), None),
        (("left_out.json",), None),
    ],
)
def test_a_run_that_never_began_has_nothing_to_verify(tmp_path, nip, refused, files, words):
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    with ExitStack() as stack:
        for name in files:
            if name == "lease":
                stack.enter_context(acquire(open_store(str(tmp_path / "runs")), "first"))
                continue
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (run / name).touch()
        command = ("verify", "first", "--run-store", str(tmp_path / "runs"))
        if words is None:
            assert nip(*command).returncode == 5
            return
        said = refused(*command)
        assert f"run 'first' {words}" in said and "nip train begins it" in said
        assert not refused(*command, "--json").startswith("{")


def test_play_writes_parquet_that_train_would_use(tmp_path, nip):
    config = write_config(tmp_path)
    out = tmp_path / "out"
    first = json.loads(nip("play", str(config), "--out", str(out), "--json").stdout)
    assert first["rows"]["episodes"] == 50 and first["rows"]["generations"] >= 150
    episodes = [pq.read_table(file) for file in sorted(out.glob("episodes-*.parquet"))]
    assert sum(table.num_rows for table in episodes) == 50
    again = json.loads(nip("play", str(config), "--out", str(out), "--json").stdout)
    assert again["canonical_digest"] == first["canonical_digest"]
    before = sorted(out.iterdir())
    other = nip("play", str(config), "--out", str(out), "--split", "test", "--json")
    assert other.returncode == 2
    assert f"nip: --out {out}: it holds other rollouts" in other.stderr
    assert sorted(out.iterdir()) == before


def test_a_process_that_waits_for_nobody_leaves():
    code = (
        "import threading; from nip_cli import cli; cli._LEAVE_S = 0.1; "
        "cli._leave_by_force(7); threading.Event().wait()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7 and "left; running again continues" in done.stderr


def test_doctor_tells_what_is_there(nip):
    done = nip("doctor", "--json")
    assert done.returncode == 0, done.stdout
    found = {finding["what"]: finding for finding in json.loads(done.stdout)}
    assert found["engine deterministic"]["ok"] and found["model tiny"]["ok"]
    assert "engine vllm" in found
    layers = found["sandbox"]["detail"]
    assert "untrusted code" in layers and "limits on time and memory" in layers
    assert {"C compiler", "Python.h", "CUDA"} <= found.keys()


def test_doctor_says_why_torch_cannot_be_imported_and_what_can_run_without_it(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: no such file')")
    done = fresh_nip("doctor", environment={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "torch can't be imported (libcudart.so.13: no such file)" in done.stdout
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("can run: the engines deterministic") and "no local training" in last


def test_the_version_is_that_of_the_distribution(nip):
    assert nip("--version").stdout == f"nip {importlib.metadata.version(DISTRIBUTION)}\n"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rl": {"nonsense": 1}}, "rl.nonsense: unknown setting"),
        ({"interaction_protocol": "chess"}, "interaction_protocol"),
        ({"agents": {"judge": {}}}, "no such agent"),
        ({"nip_protocol": {"max_message_rounds": 4}}, "the last turn to prover"),
        ({"run_name": "My Run!"}, "run_name"),
        ({"dataset": "nowhere.parquet"}, "nowhere.parquet"),
        ({"agents": {"_default": {"model_name": "m"}}}, "OPENAI_API_KEY"),
        ({"agents": {"_default": {"model_provider": "OpenAI"}}}, "prover.model_name: is missing"),
    ],
)
def test_wrong_settings_are_one_line_before_anything_is_spent(tmp_path, settings, said, refused):
    config = write_config(tmp_path, **settings)
    line = refused("train", str(config), environment={"OPENAI_API_KEY": ""})
    assert said in line
    assert not list((tmp_path / "runs").glob("*/run.json"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y": None}, "y"),
        ({"y": [1, 2] * 10}, "2"),
        ({"solution": ["def f(x): return x"] * 19 + [None]}, "solution"),
    ],
)
def test_a_wrong_dataset_is_named(tmp_path, changes, said, refused):
    config = write_config(tmp_path, dataset=dataset(tmp_path, **changes))
    line = refused("train", str(config))
    assert "train.parquet" in line and said in line


def test_a_corrupt_parquet_file_is_named(tmp_path, refused):
    path = Path(dataset(tmp_path)) / "train.parquet"
    path.write_bytes(path.read_bytes()[:200])
    assert "train.parquet" in refused(
        "train", str(write_config(tmp_path, dataset=str(path.parent)))
    )


def test_a_store_without_permission_is_named(tmp_path):
    (tmp_path / "runs").mkdir(mode=0o500)
    done = fresh_nip("train", str(write_config(tmp_path)), before=end_override)
    assert "run_store: " in (line := one_line(done, code=2)) and "permission" in line


def test_a_store_that_is_a_file_is_named(tmp_path, refused):
    (tmp_path / "runs").write_text("")
    line = refused("train", str(write_config(tmp_path)))
    assert "run_store: " in line and "is no directory" in line


def test_a_model_path_that_is_not_there_is_named(tmp_path, refused):
    config = write_config(
        tmp_path,
        agents={"_default": {"model_provider": "SelfHosted", "model_name": "./no/such/model"}},
        lm_server={"engine": "embedded"},
    )
    assert "no/such/model" in refused("train", str(config))
    assert not list((tmp_path / "runs").glob("*/run.json"))


def test_a_port_in_use_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = fresh_nip(
            *("serve", "--engine", "deterministic", "--model", "m", "--port", port, "--no-auth"),
            *("--state", str(tmp_path / "state")),
        )
    assert done.returncode == 2 and "port is in use" in done.stderr


def test_showing_what_is_not_there_is_an_error(tmp_path, refused):
    assert "no such directory" in refused("show", "--run-store", str(tmp_path / "none"))
    (tmp_path / "runs").mkdir()
    assert "no runs" in refused("show", "--run-store", str(tmp_path / "runs"))


def test_show_prints_the_newest_run(tmp_path, nip, refused):
    config = write_config(tmp_path)
    nip("play", str(config), "--out", str(tmp_path / "out"))
    done = nip("show", "--json", "--run-store", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["run"] == "small" and shown["status"] == "stopped"
    assert shown["iterations"][0]["models"]["verifier"] == "deterministic"
    assert not list((tmp_path / "runs").glob(".probe*"))
    (tmp_path / "runs" / "small" / "lease.json").write_text("{")
    assert "small/lease.json" in refused("show", "--run-store", str(tmp_path / "runs"), code=5)


def wait_for(what, process=None, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not what():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_exit_codes_tell_what_helps():
    codes = [exit_code(kind("x")) for kind in (StageError, StoreError, LeaseError)]
    assert codes == [3, 3, 4]
    assert exit_code(CorruptionError("x")) == 5
    assert exit_code(JobError("x")) == 6
    assert exit_code(BudgetError("x")) == 7


def test_serve_takes_its_options_in_any_form_and_serves_a_bundled_name(tmp_path):
    state = tmp_path / "state"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "nip_cli.cli", "serve", "--engine=deterministic"),
            *("--model=tiny", "--port=0", "--no-auth", f"--state={state}"),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: read_card(state) is not None, process)
        assert read_card(state).model == "tiny"
        stopped = fresh_nip("serve", "--stop", "--state", str(state))
        assert (stopped.returncode, stopped.stdout) == (0, "stopped\n")
        assert process.wait(30) == 0
    finally:
        process.kill()


def test_serve_speaks_of_itself_in_its_errors(tmp_path, nip):
    for arguments, said in (
        (["--engine", "embedded"], "--model"),
        (["--engine", "embedded", "--model", "m", "--bogus"], "--bogus"),
        (["--engine", "other", "--model", "m"], "--engine"),
    ):
        done = nip("serve", "--state", str(tmp_path / "s"), *arguments)
        assert done.returncode == 2
        assert "nip serve" in done.stderr and said in done.stderr and "lm_server" not in done.stderr


@pytest.mark.long
def test_a_prefect_server_that_does_not_answer_is_named(tmp_path):
    nowhere = {**os.environ, "PREFECT_API_URL": "http://127.0.0.1:1/api"}
    said = one_line(fresh_nip("train", str(write_config(tmp_path)), environment=nowhere), 3)
    assert "PREFECT_API_URL http://127.0.0.1:1/api: no Prefect server answers" in said
    assert not (tmp_path / "runs" / "small").exists()


def test_a_provider_that_can_not_be_reached_is_named_before_anything_is_played(tmp_path, nip):
    nowhere = {"model_name": "m", "base_url": "http://127.0.0.1:1"}
    config = write_config(tmp_path, agents={"_default": nowhere})
    arguments = ["play", str(config), "--out", str(tmp_path / "out")]
    done = nip(*arguments, environment={"OPENAI_API_KEY": "a key"})
    said = one_line(done, 3)
    assert "http://127.0.0.1:1/v1: can't be reached" in said and "agents.verifier" in said
    assert "trying again" in done.stdout and "episodes" not in done.stdout
    assert not (tmp_path / "runs" / "small").exists()


def test_the_plan_begins_with_what_is_not_a_default_and_ends_with_the_price_to_add(tmp_path, nip):
    bundled = {"model_name": "deterministic", "model_provider": "SelfHosted"}
    paid = {"model_name": "gpt-9", "model_provider": "OpenAI"}
    config = write_config(tmp_path, agents={"verifier": bundled, "prover": paid})
    done = nip("train", str(config), "--dry-run")
    settings, size = done.stdout.split("\n\n")
    assert len(settings.splitlines()) < 60 and load_parameters(str(config)) == load_parameters(
        yaml.safe_load(settings)
    )
    assert "2 iterations, nothing was started" in size
    lines = size.splitlines()
    at = next(i for i, line in enumerate(lines) if "cost unknown" in line)
    to_add = textwrap.dedent("\n".join(lines[at + 1 : at + 3]))
    assert to_add == "prices:\n  gpt-9: {prompt_usd: P, completion_usd: C, training_usd: T}"
    added = to_add.replace("P,", "1,").replace("C,", "2,").replace("T}", "3}")
    config.write_text(f"{config.read_text()}\n{added}\n")
    assert "US dollars" in nip("train", str(config), "--dry-run").stdout


def test_few_rollouts_are_warned_of_in_the_plan(tmp_path, nip):
    config = write_config(tmp_path, rl={"num_iterations": 1, "rollouts_per_iteration": 5})
    done = nip("train", str(config), "--dry-run", "--json")
    assert "5 rollouts per iteration" in done.stderr and "fewer than 10" in done.stderr
    assert json.loads(done.stdout)["estimate"]["train_episodes"] == 5


def test_an_agent_that_can_never_be_trained_is_warned_of_in_the_plan(tmp_path, nip):
    arguments = ["train", str(write_config(tmp_path)), "--dry-run"]
    arguments += ["--set", "protocol_common.zero_knowledge=true"]
    (line,) = nip(*arguments).stderr.splitlines()
    assert "agents.adversarial_verifier can earn at most 0" in line
    assert "weighted_sampling" in line
    weighted = "pure_text_ei.rollout_selection_method=weighted_sampling"
    prefers = "trainer=pure_text_malt"  # which has no threshold
    for way_out in (weighted, "agents.adversarial_verifier.freeze_agent=true", prefers):
        assert nip(*arguments, "--set", way_out).stderr == ""


def test_the_plan_refuses_models_of_another_run_that_are_not_there(tmp_path, refused):
    config = str(write_config(tmp_path))
    (tmp_path / "runs").mkdir()
    base = ["--set", "base_run.base_run_type=parameters", "--set", "base_run.run_id=nowhere"]
    assert "there is no run 'nowhere'" in refused("train", config, "--dry-run", *base)


def test_prefect_has_time_to_start_on_a_busy_machine_and_logs_as_it_does_by_itself(monkeypatch):
    name = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"
    monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("PREFECT_LOGGING_LEVEL", raising=False)
    monkeypatch.setattr(sys, "argv", ["nip", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert float(os.environ[name]) >= 120
    # Or workers would inherit it, and the logs of all their flow runs would be empty.
    assert "PREFECT_LOGGING_LEVEL" not in os.environ


def test_a_fork_with_a_wrong_setting_writes_nothing(tmp_path, nip, refused):
    config = write_config(tmp_path)
    played = nip("play", str(config), "--out", str(tmp_path / "out"))
    assert played.stdout.splitlines()[-1].endswith(f": nip view {tmp_path}/runs/small")
    line = refused("train", str(config), "--fork", "2024", "--set", "dataset=nowhere.parquet")
    assert "nowhere.parquet" in line
    assert not (tmp_path / "runs" / "2024").exists()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_of_a_run_is_whole_at_the_width_of_a_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    test = {
        "accuracy": 0.4375,
        "accuracy_ci95": (0.403, 0.4725),
        "completeness": 1.0,
        "soundness": 0.875,
        "distinct_problems": 1216,
        "questions": 155,
    }
    jobs = {group: {"status": "succeeded"} for group in ("prover", "verifier")}
    ended = {**jobs, "prover": {"status": "keep_model"}}
    rows = [{"iteration": 10 + i, "test": test, "jobs": jobs if i else ended} for i in range(2)]
    spent = {"spent": 123_456_789, "expected": 2e8, "at_most": 4e9, "budget": 3e8}
    costs = {"tokens": spent, "usd": {**spent, "spent": 1234.5}}
    show_run({"run": "r", "status": "finished", "iterations": rows, "costs": costs})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns and "…" not in "".join(lines)
    [row] = [line for line in lines if line.split()[:1] == ["11"]]
    for cell in ("43.8 %", "40.3 to 47.2", "100.0 %", "87.5 %", "1,216", "succeeded"):
        assert cell in row
    assert "keep_model" in "".join(lines)


def test_a_dataset_is_built_from_problems_with_tests(tmp_path, nip, refused):
    source = write_rows(tmp_path / "small.jsonl", human_eval_rows()[:3])
    build = ("problems", "build", str(source), "--out", str(tmp_path / "out"))
    fence = ("--allow-without-namespaces", "--workers", "1")
    done = nip(*build, *fence, "--variants", "1")
    assert done.returncode == 0, done.stderr
    files = [Path(line) for line in done.stdout.splitlines() if line.startswith(str(tmp_path))]
    assert {file.name for file in files} >= {"train.parquet", "test.parquet", "datasheet.md"}
    assert all(file.is_file() for file in files)
    assert "nip: 3 of 3 solutions pass their tests" in done.stderr
    assert "write it as 0.15,0.60" in refused(*build, "--model", "m", "--price", "dear")
    unknown = nip(*build, "--modle", "m")
    assert unknown.returncode == 2
    assert "No such option: --modle" in unknown.stderr
