"""A declaration holds fast the user's files, and each run of its sweep says which it began under."""

import asyncio
import hashlib
import json
import shutil
from pathlib import Path

import pytest
import yaml
from small_game import servers_here, train_here, write_config

from nip_core.errors import RunConflictError
from nip_core.hashing import digest
from nip_core.run_store.run import Identity, RunStore
from nip_core.run_store.run_documents import DECLARATION, DeclaredBefore
from nip_core.run_store.store import open_store
from nip_core.session.opening import open_session
from nip_study.compute.departures import list_departures
from nip_study.declare.declaration import declare, find_declared, read_declaration, read_plan
from nip_study.facts_on_record import collect_sweep
from nip_study.plan.swept_runs import read_sweep
from nip_study.run_process import name_declaration

HELPERS = Path(__file__).parents[3] / "tests" / "helpers"
EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "two_questions"
LIES = 'def lie(turn):\n    return "It is right."\n'
CHAT = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": "It is."}]
EQUAL = {
    "says": "asking changes nothing",
    "figure": "soundness",
    "arm": {"interaction_protocol": "nip"},
    "against": {"interaction_protocol": "adp"},
    "expected": "equal",
    "margin": 0.05,
    "primary": True,
}
ATTACKS = {
    "told": {"by": "script", "script": "lies.py:lie"},
    "begun": {"by": "sneaky", "start_from": "chats.jsonl", "steps": 1},
}
FILES = ("bare.txt", "chats.jsonl", "lies.py", "mine.jsonl")


def planned(tmp_path, sweep=None, **changes):
    """A study whose settings name a script, chats, a template and data."""
    (tmp_path / "lies.py").write_text(LIES)
    (tmp_path / "chats.jsonl").write_text((json.dumps({"messages": CHAT}) + "\n") * 10)
    shutil.copy(HELPERS / "bare_prompt.txt", tmp_path / "bare.txt")
    rows = [
        {"question": f"Is {n} even?", "solution": f"{n} % 2 == 0", "y": y, "id": f"{n}-{y}"}
        for n in range(60)
        for y in (0, 1)
    ]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = write_config(
        tmp_path,
        dataset="mine.jsonl",
        rl={"num_iterations": 1, "rollouts_per_iteration": 20},
        dataset_options={"max_test_size": 4},
    )
    file = {
        "name": "held",
        "config": config.name,
        "set": {"agents.prover.system_prompt_template_path": "bare.txt"},
        "axes": {"interaction_protocol": ["adp", "nip"], "seed": [1, 2]},
        "attacks": ATTACKS,
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({**file, **(sweep or {})}, sort_keys=False))
    return planned_again(tmp_path, **changes)


def planned_again(tmp_path, **changes):
    plan = {"sweep": "sweep.yaml", "stopping": "all runs", "hypotheses": [{**EQUAL, **changes}]}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    return read_plan(tmp_path / "plan.yaml")


def begin(store, run, declaration=None, files=None):
    """Put a run on record that has begun under a declaration."""
    files = declaration.plan.files if files is None and declaration is not None else files
    under = None if declaration is None else DeclaredBefore(sha256=declaration.sha256, files=files)
    settings = run.parameters.to_dict()
    code = "0" if declaration is None else declaration.code_version
    RunStore(store, run.name).create_or_open(Identity(settings, code, 1, declaration=under))


def departures(store, sweep, begun=()):
    """What is not as declared, but that most runs are not finished."""
    declaration = read_declaration(store, sweep.name)
    names = [run.name for run in sweep.runs]
    names += [attack.name for run in sweep.runs for attack in run.attacks]
    status = {name: "stopped" if name in begun else "not begun" for name in names}
    lines = list_departures(store, sweep, declaration, status)
    return [line for line in lines if not line.endswith((": not begun", ": stopped"))]


def forge(path, **changes):
    """Change what a declaration says, with digests that fit, as somebody who knows how would."""
    document = json.loads(path.read_bytes())
    document["plan"]["hypotheses"][0] |= changes
    document["plan_sha256"] = digest(document["plan"])
    del document["sha256"]
    document["sha256"] = digest(document)
    path.write_text(json.dumps(document, indent=2))


def test_what_the_settings_of_runs_name_is_declared_as_anybody_can_digest_it(tmp_path):
    plan = planned(tmp_path)
    declaration, _ = declare(open_store(plan.sweep.run_store), plan)
    assert declaration.format == 2
    assert declaration.plan.files == {
        str(tmp_path / name): hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        for name in FILES
    }


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_changes_is_another_plan_and_later_a_departure(tmp_path, name):
    plan = planned(tmp_path)
    store, file = open_store(plan.sweep.run_store), tmp_path / name
    first, _ = declare(store, plan)
    whole = file.read_text()
    # Before the first run it is a new declaration, as any plan that changes.
    file.write_text(whole + "\n")
    plan = planned_again(tmp_path)
    second, is_new = declare(store, plan)
    assert is_new and second.plan.files != first.plan.files
    assert departures(store, plan.sweep) == []
    # From then on it is refused, and named on the page.
    [run, *_] = plan.sweep.runs
    begin(store, run, second)
    file.write_text(whole + "\n\n")
    plan = planned_again(tmp_path)
    assert departures(store, plan.sweep, [run.name]) == [f"{file}: other content than declared"]
    with pytest.raises(
        RunConflictError,
        match=f"{name} is not what was declared, and 1 of its runs .*put the file back",
    ):
        declare(store, plan)


def test_a_run_that_began_with_another_file_is_named_although_it_was_put_back(tmp_path):
    plan = planned(tmp_path)
    store = open_store(plan.sweep.run_store)
    declaration, _ = declare(store, plan)
    run, script = plan.sweep.runs[0], str(tmp_path / "lies.py")
    begin(store, run, declaration, {**declaration.plan.files, script: "0" * 64})
    line = f"{run.name}: begun with another content of {script} than declared"
    assert departures(store, plan.sweep, [run.name]) == [line]


def test_files_that_a_user_s_class_brings_are_named_by_where_they_lie_beside_it(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "game")
    sweep = {
        "name": "brought",
        "config": "game/config.yaml",
        "run_store": str(tmp_path / "runs"),
        "axes": {"protocol_common.shared_reward": [True, False], "seed": [1, 2]},
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    arms = {"arm": {"protocol_common.shared_reward": True}}
    arms["against"] = {"protocol_common.shared_reward": False}
    plan = planned_again(tmp_path, **arms)
    files = plan.contents.files
    names = ("protocol.py", "prover.txt", "replies.yaml", "verifier.txt")
    assert [*files] == [str(tmp_path / "game" / name) for name in names]
    text = (EXAMPLE / "prover.txt").read_bytes()
    assert files[str(tmp_path / "game" / "prover.txt")] == hashlib.sha256(text).hexdigest()


def test_a_declaration_that_was_changed_after_a_run_began_is_noticed(tmp_path):
    plan = planned(tmp_path)
    store = open_store(plan.sweep.run_store)
    declaration, _ = declare(store, plan)
    first, second, *_ = plan.sweep.runs
    begin(store, first, declaration)
    begin(store, second)
    own = [line for line in departures(store, plan.sweep, [first.name]) if "declar" in line]
    assert own == []
    forge(tmp_path / "runs" / "sweeps" / "held" / "declaration.json", margin=0.2)
    assert read_declaration(store, "held").plan.hypotheses[0].margin == 0.2
    lines = departures(store, plan.sweep, [first.name, second.name])
    assert f"{first.name}: begun under another declaration" in lines
    assert f"{second.name}: begun outside of the declared sweep" in lines
    changed = planned_again(tmp_path, margin=0.2)
    with pytest.raises(RunConflictError) as raised:
        declare(store, changed)
    assert f"{first.name} was begun under another declaration ({declaration.sha256[:16]})" in str(
        raised.value
    )


def test_declarations_and_runs_of_before_go_on_and_depart_from_nothing_more(tmp_path):
    plan = planned(tmp_path)
    store = open_store(plan.sweep.run_store)
    declare(store, plan)
    path = tmp_path / "runs" / "sweeps" / "held" / "declaration.json"
    document = json.loads(path.read_bytes())
    del document["format"], document["plan"]["files"], document["sha256"]
    document["plan_sha256"] = digest(document["plan"])
    document["sha256"] = digest(document)
    path.write_text(json.dumps(document))
    old = read_declaration(store, "held")
    assert (old.format, old.plan.files) == (1, None)
    [run, *_] = plan.sweep.runs
    begin(store, run)
    assert departures(store, plan.sweep, [run.name]) == [f"{run.name}: played with code 0"]
    (tmp_path / "lies.py").write_text(LIES + "\n")
    assert declare(store, planned_again(tmp_path)) == (old, False)
    # A run without a sweep that is declared has no key at all.
    assert "declaration" not in json.loads((tmp_path / "runs" / run.name / "run.json").read_bytes())


def test_a_run_has_on_record_what_its_sweep_names_as_it_begins(tmp_path):
    plan = planned(tmp_path, {"attacks": {"told": ATTACKS["told"]}})
    store = open_store(plan.sweep.run_store)
    declaration, _ = declare(store, plan)
    by_hand, swept, *_ = plan.sweep.runs
    asyncio.run(train_here(plan.sweep.config, by_hand.overrides))
    environment = name_declaration({"PATH": "/usr/bin"}, find_declared(store, "held"))
    assert name_declaration({DECLARATION: "inherited"}, None) == {}

    async def begun(parameters):
        with servers_here():
            async with open_session(parameters, environment=environment) as session:
                return session.run.open().declaration

    under = asyncio.run(begun(swept.parameters))
    assert under.sha256 == declaration.sha256
    files = {str(tmp_path / name) for name in ("bare.txt", "mine.jsonl")}
    assert {*under.files} == files and under.files.items() <= declaration.plan.files.items()
    # It was begun once: whoever goes on with it changes nothing of that.
    asyncio.run(train_here(plan.sweep.config, swept.overrides))
    assert RunStore(store, swept.name).open().declaration == under
    lines = collect_sweep(store, read_sweep(tmp_path / "sweep.yaml")).facts.departures
    assert f"{by_hand.name}: begun outside of the declared sweep" in lines
    assert not [line for line in lines if line.startswith(f"{swept.name}: ")]
