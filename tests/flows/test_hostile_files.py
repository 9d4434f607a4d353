"""A file that a stranger wrote ends a command with one line that names it, never with a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from small_game import write_config

from nip_bridges.hub.repository import FACTS, read_facts
from nip_core.errors import SettingsError

DEEP = "[" * 100_000
NIP = [sys.executable, "-m", "nip_cli"]


CONFIGS = {
    "nested": "a: " + "[" * 20_000,
    "a seed of 5,000 digits": "seed: " + "7" * 5_000,
    "base 60": "seed: 12:30:45",
    "a date that isn't": "run_name: 2024-13-01",
    "a bomb": "a: &a [x, x]\n" + "".join(f"a: &a [{'*a, ' * 50}]\n" for _ in range(6)),
    "a set": "agents: !!set {a, b}",
    "bytes": "run_name: !!binary aGVsbG8=",
    "infinite": "seed: .inf\nrl: {lr: .nan}",
    "keys of many kinds": "1: a\nnull: b\n1.5: c\n2024-01-01: d\ntrue: e",
    "empty": "",
}


@pytest.mark.parametrize("command", [("train", "--dry-run"), ("sweep", "--dry-run"), ("prompt",)])
@pytest.mark.parametrize("what", CONFIGS)
def test_a_configuration_or_a_sweep_is_refused_by_its_name(nip, tmp_path, what, command):
    path = tmp_path / "strange.yaml"
    path.write_text(CONFIGS[what])
    done = nip(command[0], str(path), *command[1:])
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"nip: {path}: ") and "Traceback" not in done.stderr
    assert len(done.stderr) < 2_000


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("seed=" + "7" * 5_000, "--set seed: the value is not taken: '777"),
        ("seed=12:30:45", "--set seed: the value is not taken: '12:30:45' is 45045 in YAML 1.1"),
        ("seed=[1", "--set seed: the value is not YAML: "),
        ("a" + ".a" * 5_000 + "=1", "no setting is 5001 levels deep"),
        ("seed=" + "[" * 20_000, "nested more than 64 deep"),
    ],
)
def test_a_setting_on_the_command_line_is_refused_by_its_name(nip, setting, expected):
    done = nip("train", "deterministic", "--dry-run", "--set", setting)
    assert done.returncode == 2 and expected in done.stderr and "Traceback" not in done.stderr


def test_a_name_in_the_form_of_a_number_stays_a_name(nip):
    done = nip("train", "deterministic", "--dry-run", "--json", "--set", "run_name=012")
    assert json.loads(done.stdout)["parameters"]["run_name"] == "012"


@pytest.mark.parametrize("line", [DEEP, '{"y": ' + "7" * 5_000 + "}", "\xff"])
def test_a_line_of_a_data_set_is_refused_by_its_number(nip, tmp_path, line):
    (tmp_path / "data").mkdir()
    for split in ("train", "validation", "test"):
        (tmp_path / "data" / f"{split}.jsonl").write_bytes(f"\n{line}\n".encode("latin-1"))
    config = write_config(tmp_path, dataset=str(tmp_path / "data"))
    done = nip("train", str(config), "--dry-run")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "train.jsonl" in done.stderr and (line == "\xff" or ", line 2: not JSON" in done.stderr)


def test_a_source_of_problems_is_refused_by_its_name(nip, tmp_path):
    for name in ("source.json", "source.jsonl"):
        (tmp_path / name).write_text(DEEP)
        done = nip("problems", "build", str(tmp_path / name), "--out", str(tmp_path / "out"))
        assert done.returncode == 2 and name in done.stderr and "Traceback" not in done.stderr


def test_what_the_hub_holds_is_refused_by_its_place(tmp_path):
    (tmp_path / FACTS).write_text(DEEP)
    with pytest.raises(SettingsError, match="ada/verifier"):
        read_facts(tmp_path, "ada/verifier")


@pytest.mark.parametrize("content", [DEEP, '{"format_version": ' + "7" * 5_000 + "}", "[]", "\xff"])
def test_a_record_of_a_run_that_is_none_is_called_damaged(nip, tmp_path, content):
    (tmp_path / "runs" / "small").mkdir(parents=True)
    (tmp_path / "runs" / "small" / "run.json").write_bytes(content.encode("latin-1"))
    for command in (["show", "small"], ["ls"], ["verify", "small"], ["report", "small"]):
        done = nip(*command, "--run-store", str(tmp_path / "runs"))
        assert "Traceback" not in done.stderr and "damaged" in done.stdout + done.stderr
        assert done.returncode == (0 if command == ["ls"] else 5)


def test_what_is_no_file_is_refused_and_a_pipe_of_the_shell_is_read(nip, tmp_path):
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    for path in (loop, Path("/dev/zero"), tmp_path):
        done = nip("train", str(path), "--dry-run")
        assert done.returncode == 2 and done.stderr.startswith(f"nip: {path}: "), done.stderr
    piped = subprocess.run(
        [*NIP, "train", "/dev/stdin", "--dry-run"],
        input=write_config(tmp_path).read_text(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert piped.returncode == 0 and "nothing was started" in piped.stdout


@pytest.mark.parametrize(
    "store",
    [
        "/dev/null/x",
        "/proc/x",
        "s3://",
        "s3:///prefix",
        "file://",
        "ftp://x/y",
        "/tmp/" + "a" * 300,
        "~no-such-user/x",
    ],
)
def test_a_dry_run_refuses_a_store_that_can_not_be(nip, tmp_path, store):
    config = write_config(tmp_path, run_store=store)
    done = nip("train", str(config), "--dry-run")
    assert done.returncode == 2 and store.rstrip("/") in done.stderr
    assert done.stderr.startswith("nip: run_store: ")
    sweep = {"name": "few", "config": str(config), "axes": {"seed": [1]}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    again = nip("sweep", str(tmp_path / "sweep.yaml"), "--dry-run")
    assert (again.returncode, again.stderr) == (done.returncode, done.stderr)


def test_a_dry_run_makes_no_directory(nip, tmp_path):
    config = write_config(tmp_path, run_store=str(tmp_path / "a" / "b"))
    assert nip("train", str(config), "--dry-run").returncode == 0
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param('active = "x\n', marks=pytest.mark.long),
        "[profiles.x]\nPREFECT_API_URL = [1]\n[[",
    ],
)
def test_profiles_of_prefect_that_are_broken_are_named(nip, tmp_path, content):
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(content)
    changes = {"PREFECT_PROFILES_PATH": str(profiles), "PREFECT_API_URL": ""}
    done = nip("train", str(write_config(tmp_path)), environment=changes)
    assert done.returncode == 2 and f"mend {profiles}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("PREFECT_API_URL", "http://ada:word-of-it@[::1/api", "is no address like"),
        ("PREFECT_API_REQUEST_TIMEOUT", "word-of-it", "Input should be a valid number"),
    ],
)
def test_a_variable_that_prefect_can_not_read_is_named_without_its_value(variable, value, why):
    done = subprocess.run(
        [sys.executable, "-c", "from nip_cli.launching.launch import *; import_prefect()"],
        env={**os.environ, "PREFECT_API_URL": "", variable: value},
        capture_output=True,
        text=True,
        timeout=120,
    )
    line = done.stderr.splitlines()[-1]
    assert "SettingsError" in line
    assert variable in line and why in line and "unset it" in line
    assert "Failed to initialize plugins" not in done.stderr
    assert "word-of-it" not in done.stderr and "profiles.toml" not in done.stderr
