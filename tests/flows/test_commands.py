"""What people look for: ls, report, prompt, init, names of configurations, completion, a quick start-up."""

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from scripted_server import scripted_server
from small_game import FEW, train_here, write_config

from nip_cli.command_table import load_command, read_panels
from nip_core.configurations import bundled_configs
from nip_core.loop import play
from nip_core.parameters import load_parameters
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.opening import open_session
from nip_core.showing.asked_chats import Place, render_chat_on_record, render_chat_to_come

NIP = [sys.executable, "-m", "nip_cli"]
COMMANDS = [name for lines in read_panels().values() for name, _, _ in lines]


@pytest.fixture(scope="module")
async def store(tmp_path_factory):
    """A store with a finished run, one that is damaged, and one of a newer version."""
    folder = tmp_path_factory.mktemp("store")
    await train_here(write_config(folder, rl=FEW))
    for name, content in (("broken", "{"), ("newer", json.dumps({"format_version": 99}))):
        (folder / "runs" / name).mkdir()
        (folder / "runs" / name / "run.json").write_text(content)
    return folder / "runs"


def test_the_help_fits_80_columns_and_names_each_command_in_a_line(nip):
    lines = nip("--help").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for name in COMMANDS:
        [line] = [line for line in lines if line.startswith(f"│ {name} ")]
        assert line.rstrip(" │").endswith(".")
    order = [line.split()[1] for line in lines if line[:2] == "│ " and line.split()[1] in COMMANDS]
    assert order == COMMANDS and order[0] == "quickstart"


@pytest.mark.parametrize("words", [(), ("train",), ("problems",), ("problems", "build")])
def test_h_is_short_for_help(nip, words):
    asked = nip(*words, "-h")
    assert asked.returncode == 0 and asked.stdout == nip(*words, "--help").stdout


@pytest.mark.parametrize("words", [("ls",), ("show", "small")])
def test_looking_at_runs_imports_nothing_that_plays_trains_or_reckons(store, words):
    code = (
        "import sys\nfrom nip_cli.cli import main\ntry: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'prefect', 'openai', 'pyarrow', 'numpy', 'aiohttp', 'jinja2', 'yaml',"
        " 'matplotlib'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, *words, "--run-store", str(store)],
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert "50.0 %" in shown or "finished" in shown
    assert shown.rstrip().endswith("HEAVY []")


def test_a_misspelt_command_is_answered_with_the_nearest(nip):
    refused = nip("trian")
    assert refused.returncode == 2
    assert "No such command 'trian'. Did you mean 'train'?" in refused.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_where_the_table_says(name):
    command = load_command(name)
    assert command.name == name and command.help


def test_help_version_and_completion_import_nothing_that_a_run_needs():
    code = (
        "import sys\nfrom nip_cli.cli import main\ntry: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'prefect', 'openai', 'pyarrow', 'numpy', 'aiohttp', 'yaml'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    complete = {"_NIP_COMPLETE": "complete_bash", "COMP_WORDS": "nip train qu", "COMP_CWORD": "2"}
    for arguments, environment in ((["--help"], {}), (["--version"], {}), ([], complete)):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.stdout.splitlines()[-1] == "HEAVY []", (arguments, done.stdout, done.stderr)


def test_ls_shows_every_run_and_says_which_can_not_be_read(nip, store):
    done = nip("ls", "--run-store", str(store))
    assert done.returncode == 0 and max(map(len, done.stdout.splitlines())) <= 80
    [small] = [line for line in done.stdout.splitlines() if "small" in line]
    assert "finished" in small and "1/1" in small and " %" in small and " to " in small
    assert done.stdout.count("damaged") == 2
    assert "broken/run.json" in done.stderr and "format version 99" in done.stderr
    [first, *rest] = json.loads(nip("ls", "--run-store", str(store), "--json").stdout)
    assert (first["run"], first["status"], first["tested"]) == ("small", "finished", 1)
    low, high = first["accuracy_ci95"]
    assert low <= first["accuracy"] <= high and first["usd"] == 0 and first["tokens"] > 0
    assert {run["status"] for run in rest} == {"damaged"}
    shown = json.loads(nip("show", "small", "--run-store", str(store), "--json").stdout)
    assert first["accuracy"] == shown["iterations"][-1]["test"]["accuracy"]
    assert first["tokens"] == shown["costs"]["tokens"]["spent"]


def test_ls_of_a_store_without_runs_says_what_makes_one(nip, tmp_path):
    assert "nip quickstart" in nip("ls", "--run-store", str(tmp_path)).stdout
    done = nip("ls", "--run-store", str(tmp_path / "nowhere"))
    assert done.returncode == 2 and "there is no such directory" in done.stderr


def test_a_run_of_nearly_this_name_is_named(nip, store):
    done = nip("report", "smal", "--run-store", str(store))
    assert done.returncode == 2 and "did you mean 'small'?" in done.stderr


def test_a_run_is_named_by_its_path_as_well_by_every_command(nip, store, tmp_path):
    path = f"{store}/small"
    for arguments in (
        *(("show", path), ("report", f"{path}/"), ("report", path, "--anew"), ("verify", path)),
        *(("prompt", "--run", path), ("clean", path, "--dry-run")),
        *(("diff", path, path), ("attack", path, "--by", "best-of-n", "--dry-run")),
    ):
        done = nip(*arguments, "--run-store", str(tmp_path / "nowhere"))
        assert done.returncode == 0, (arguments, done.stderr)
    for command in ("show", "verify", "clean", "track", "view"):
        done = nip(command, f"{store}/smal")
        assert done.returncode == 2 and "did you mean 'small'?" in done.stderr, command
        done = nip(command, "nowhere/small")
        assert done.returncode == 2 and "no such directory" in done.stderr, command
    assert not Path("nowhere").exists()


def test_report_says_where_it_is_makes_it_and_opens_it(nip, store, tmp_path):
    page = store / "small" / "report.html"
    page.unlink(missing_ok=True)
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    done = nip(
        *("report", "small", "--run-store", str(store), "--open"),
        environment={"BROWSER": str(browser)},
    )
    assert (done.returncode, done.stdout.strip()) == (0, str(page)), done.stderr
    assert "</html>" in page.read_text()
    assert opened.read_text().strip() == page.as_uri()
    before = page.stat().st_mtime_ns
    assert nip("report", "small", "--run-store", str(store)).stdout.strip() == str(page)
    assert page.stat().st_mtime_ns == before  # what is there is not made again
    nip("report", "small", "--run-store", str(store), "--anew")
    assert page.stat().st_mtime_ns > before


def test_init_writes_a_configuration_that_runs_and_touches_nothing(nip, tmp_path, monkeypatch):
    file = tmp_path / "new folder" / "my-game.yaml"
    done = nip("init", str(file))
    assert done.returncode == 0 and f"nip train '{file}'" in done.stdout
    assert load_parameters(str(file)).run_name == "my-game"
    assert nip("train", str(file), "--dry-run").returncode == 0
    written = file.read_bytes()
    assert b"THIS_FILE" not in written
    refused = nip("init", str(file))
    assert refused.returncode == 2 and "is there already" in refused.stderr
    assert file.read_bytes() == written
    nip("init", str(tmp_path))
    assert load_parameters(str(tmp_path / "experiment.yaml")).run_name == "experiment"
    assert nip("init", str(tmp_path / "a.json")).returncode == 2


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("ünï.yaml", "uni"),
        ("My Game_2.yml", "my-game-2"),
        ("遊戲.yaml", "mine"),
        (f"{'long-' * 20}.yaml", "long-long-long-long-long-long-long-long-l"),
    ],
)
def test_init_derives_a_name_that_a_run_may_have(nip, tmp_path, file, name):
    done = nip("init", str(tmp_path / file))
    assert done.returncode == 0 and f"a run called {name}\n" in done.stdout
    assert load_parameters(str(tmp_path / file)).run_name == name


@pytest.mark.parametrize("name", bundled_configs())
def test_init_copies_each_bundled_configuration_under_a_name_of_its_own(nip, tmp_path, name):
    file = tmp_path / "mine.yaml"
    assert nip("init", str(file), "--from", name).returncode == 0
    mine, theirs = load_parameters(str(file)).to_dict(), load_parameters(name).to_dict()
    assert mine.pop("run_name") == "mine" and theirs.pop("run_name") == name
    assert mine == theirs


def test_new_runs_of_calculations_have_questions_that_tell_no_label():
    """What was played before there was a choice has a configuration of its own."""
    generators = {
        name: load_parameters(name).scenario_settings.get("generator", "chains-1")
        for name in ("arithmetic-tiny", "arithmetic-chains-1")
    }
    assert generators == {"arithmetic-tiny": "chains-2", "arithmetic-chains-1": "chains-1"}


def test_train_without_a_configuration_lists_them_and_does_nothing(nip):
    done = nip("train")
    assert done.returncode == 2
    assert max(map(len, done.stdout.splitlines())) <= 80
    for name in bundled_configs():
        assert f"\n  {name} " in done.stdout


# What agents are asked ----------------------------------------------------------------------------


def answered(body):
    system = body["messages"][0]["content"]
    if "You are the expert" in system or "Answer:" in system:
        return "Answer: it does what was asked."
    asked = sum(message["role"] == "assistant" for message in body["messages"])
    return "Decision: accept" if asked else "Question: does it?"


@pytest.mark.long
async def test_prompts_are_what_a_server_was_sent_before_and_after(tmp_path):
    async with scripted_server(answered) as server:
        agent = {
            "model_provider": "OpenRouter",
            "model_name": "some/model",
            "base_url": server.url,
            "freeze_agent": True,
            "temperature": 0.7,
            "max_tokens_per_message": 32,
        }
        config = write_config(
            tmp_path,
            agents={"_default": agent},
            code_validation={"system_prompt_version": "short"},
            rl={"num_iterations": 1, "rollouts_per_iteration": 6},
        )
        parameters = load_parameters(str(config))
        os.environ.setdefault("OPENROUTER_API_KEY", "unused")
        async with open_session(parameters) as session:
            await play(session, 0, "train")
    sent = [body["messages"] for body in server.bodies]
    run = RunStore(open_store(str(tmp_path / "runs"), read_only=True), "small")
    shown = []
    for number in range(6):
        for agent, round_ in (("verifier", 0), ("prover", 1), ("verifier", 2)):
            asked = render_chat_on_record(run, Place(agent, round_, str(number)))
            assert asked.answers[-1]["text"] and asked.answers[-1]["invalid"] is None
            shown.append(asked.messages)
    assert sorted(map(repr, shown)) == sorted(map(repr, sent))
    # Before anything is played, the first call is known to the last field of its request.
    for number in range(6):
        first = render_chat_to_come(parameters, Place(problem=str(number)))
        assert {**first.request, "messages": first.messages} in server.bodies
        later = render_chat_to_come(parameters, Place("verifier", 2, str(number)))
        roles = [message["role"] for message in later.messages]
        assert any(roles == [m["role"] for m in chat] for chat in sent)
        contents = [message["content"] for message in later.messages]
        assert contents[1:3] == ["<what verifier says in round 0>", "<what prover says in round 1>"]
        assert later.messages[0] in [chat[0] for chat in sent]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("quickstart", "--agent", "bob"), "use one of prover, verifier"),
        (("quickstart", "--agent", "prover", "--round", "2"), "prover in 1; verifier in 0, 2"),
        (("quickstart", "--problem", "nothing"), "ids are families/"),
        (
            ("quickstart", "--problem", "families/add_until/11-belw-19"),
            "ids are families/add_until/11-below-19,",
        ),
        (("quickstart", "--iteration", "3"), "in iterations 0 to 2"),
        (("quickstart", "--split", "all"), "use one of train, validation, test"),
        ((), "name a configuration, or a run by --run"),
    ],
)
def test_a_turn_that_is_not_there_is_refused_with_those_that_are(nip, arguments, reason):
    done = nip("prompt", *arguments)
    assert done.returncode == 2 and reason in done.stderr, done.stderr


@pytest.mark.parametrize("config", [c for c in bundled_configs() if "paper" not in c])
def test_every_bundled_configuration_has_prompts_to_show(nip, config):
    done = nip("prompt", config, "--json")
    if done.returncode == 2:  # its dataset is on a hub, or its model on the package index
        said = done.stderr.lower()
        assert any(word in said for word in ("offline", "network", "hub", "nip models add"))
        return
    asked = json.loads(done.stdout)
    assert asked["messages"][0]["role"] == "system" and asked["request"]["model"]


# Completion ---------------------------------------------------------------------------------------


STUB = """#!/bin/sh
if [ -n "$_NIP_COMPLETE" ] || [ "$1" = --show-completion ]; then exec PYTHON -m nip_cli "$@"; fi
printf '[%s]' "$@"; echo END
"""


class Bash:
    """A bash on a terminal of its own, in which keys are pressed; its `nip` says what it was told."""

    def __init__(self, folder: Path):
        inner, outer = pty.openpty()
        self._inner = inner
        command = folder / "bin" / "nip"
        command.parent.mkdir()
        command.write_text(STUB.replace("PYTHON", sys.executable))
        command.chmod(0o755)
        environment = {
            **os.environ,
            "PS1": "$ ",
            "TERM": "dumb",
            "INPUTRC": "/dev/null",
            "PATH": f"{command.parent}:{os.environ['PATH']}",
        }
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            cwd=folder,
            env=environment,
            stdin=outer,
            stdout=outer,
            stderr=outer,
            start_new_session=True,
        )
        os.close(outer)
        os.set_blocking(inner, False)
        self.press("source <(nip --show-completion bash); nip ready\n")

    def press(self, keys: str) -> str:
        """Press keys, the last of which is Enter; everything that is seen until `nip` has said."""
        os.write(self._inner, keys.encode())
        seen, deadline = "", time.monotonic() + 60
        while "]END" not in seen:
            assert time.monotonic() < deadline, seen
            try:
                seen += os.read(self._inner, 65536).decode()
            except BlockingIOError:
                time.sleep(0.02)
        return seen

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._inner)


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bash")
    (folder / "runs" / "my-first-run").mkdir(parents=True)
    (folder / "runs" / "my-first-run" / "run.json").write_text("{}")
    (folder / "game.yaml").write_text("")
    shell = Bash(folder)
    yield shell
    shell.close()


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("nip qui\t", "[quickstart]"),
        ("nip train quick\t", "[train][quickstart]"),
        ("nip train ga\t", "[train][game.yaml]"),
        ("nip show my\t", "[show][my-first-run]"),
        ("nip diff my\truns/m\t", "[diff][my-first-run][runs/my-first-run]"),
        ("nip prompt --run m\t", "[prompt][--run][my-first-run]"),
        ("nip init --from malt-t\t", "[init][--from][malt-tiny]"),
        ("nip train --set rl.nu\tit\t3", "[train][--set][rl.num_iterations=3]"),
        ("nip train --set rol\tconc\t9", "[train][--set][rollouts.concurrency=9]"),
        ("nip serve --eng\t", "[serve][--engine]"),
    ],
)
def test_a_real_bash_completes_commands_configurations_runs_and_settings(bash, keys, told):
    seen = bash.press(f"{keys}\n")
    assert f"{told}END" in seen.replace("\r", ""), seen


def test_every_command_that_takes_a_run_completes_its_name_and_its_path(tmp_path, monkeypatch):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    completed = set()
    for name in COMMANDS:
        command = load_command(name)
        for argument in command.params:
            if argument.param_type_name == "argument" and argument.name in (
                "run",
                "runs",
                "names",  # of compare: runs, or files
                "a",
                "b",
            ):
                context = typer.Context(command)
                for typed in ("mi", "runs/mi"):
                    [word] = argument.shell_complete(context, typed)
                    assert word.value == f"{typed}ne", name
                completed.add(name)
    looks = {"show", "view", "report", "diff", "compare", "verify"}
    assert completed == looks | {"attack", "harden", "track", "export", "push", "clean", "states"}
