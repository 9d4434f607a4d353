"""benchmarks/gpu_session.py: its file, its pieces, its data. No GPU is needed, nothing is measured."""

import importlib
import inspect
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def on_the_path():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


def piece(path, name="machine"):
    from gpu_pieces.results import Piece, Results

    return Piece(Results(path, rehearsal=True), name)


def rows(path, name="machine"):
    return json.loads(path.read_text())["pieces"][name]["rows"]


def never():
    raise AssertionError("it is measured again")


def test_rows_are_written_as_they_come_and_measured_once(tmp_path):
    out = tmp_path / "out.json"
    begun = piece(out)
    begun.row("first", lambda: {"speed": 1})
    assert rows(out)["first"]["speed"] == 1  # before the piece is finished
    again = piece(out)
    assert again.row("first", never)["speed"] == 1
    again.row("second", lambda: {"speed": 2})
    again.finish()
    assert [*rows(out)] == ["first", "second"]
    assert json.loads(out.read_text())["pieces"]["machine"]["finished"] is True


def test_what_fails_is_a_reason_and_what_never_ends_is_given_up(tmp_path):
    from beside.runs import Failed
    from gpu_pieces.results import TRIES

    def fail(error):
        raise error

    out = tmp_path / "out.json"
    measured = piece(out)
    assert measured.row("absent", lambda: fail(Failed("no vLLM here"))) is None
    assert measured.row("broken", lambda: fail(ValueError("a number"))) is None
    assert rows(out)["absent"]["reason"] == "no vLLM here"
    assert rows(out)["broken"]["reason"] == "ValueError: a number"
    for _ in range(TRIES):
        with pytest.raises(KeyboardInterrupt):  # as if the piece was killed in the middle of it
            piece(out).row("slow", lambda: fail(KeyboardInterrupt()))
    assert piece(out).row("slow", never) is None
    assert "did not end in time" in rows(out)["slow"]["reason"]


def test_a_rehearsal_and_a_session_are_not_mixed(tmp_path):
    from gpu_pieces.results import Results

    out = tmp_path / "out.json"
    Results(out, rehearsal=True).write()
    with pytest.raises(SystemExit, match="holds a rehearsal"):
        Results(out, rehearsal=False)
    out.write_text("[]")
    with pytest.raises(SystemExit, match="holds no session"):
        Results(out, rehearsal=False)


def test_every_piece_has_its_measure():
    import gpu_session
    from gpu_pieces.sizes import GPU, REHEARSAL

    for name, (module, arguments) in gpu_session.PIECES.items():
        measure = importlib.import_module(f"gpu_pieces.{module}").measure
        given = 2 + len(arguments) + (name == "noise")
        assert len(inspect.signature(measure).parameters) == given, name
    assert "tests-training" not in gpu_session.ALL
    assert [shape.name for shape in REHEARSAL.shapes] == [shape.name for shape in GPU.shapes]


def test_the_command_line_refuses_what_it_does_not_know(tmp_path, capsys):
    import gpu_session

    out = ["--out", str(tmp_path / "out.json")]
    assert gpu_session.parse(["all", *out]).pieces == gpu_session.ALL
    for wrong in (["trian-3b", *out], ["machine"], ["machine", "--seconds", "0", *out]):
        with pytest.raises(SystemExit):
            gpu_session.parse(wrong)
    assert "invalid choice: 'trian-3b'" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["supervised", "dpo", "trajectories"])
def test_rows_of_every_method_are_what_the_server_takes(method):
    from gpu_pieces.jobs import METHOD_SETTINGS, lengths, rows_for

    from nip_base.formats import validate

    assert method in METHOD_SETTINGS
    sizes = lengths(12, 200, uneven=False)
    made = rows_for(method, sizes)
    assert validate(method, enumerate(made, start=1)) == []
    assert len(made) == 12 and all(170 <= size <= 230 for size in sizes)
    uneven = lengths(100, 2000, uneven=True)
    assert max(uneven) > 8 * sorted(uneven)[20]


def test_a_transcript_is_as_long_as_it_says():
    from gpu_pieces.jobs import transcript

    said = " ".join(message["content"] for message in transcript(1000, 3))
    assert len(said.split()) == pytest.approx(1000, rel=0.02)
    assert transcript(1000, 3) != transcript(1000, 4)


def test_the_end_of_a_piece_is_the_end_of_what_it_started(monkeypatch):
    import gpu_session

    monkeypatch.setattr(gpu_session, "END_S", 0.2)
    start = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", start], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    child = psutil.Process(int(process.stdout.readline()))
    gpu_session.end(process)
    process.stdout.close()
    assert process.returncode is not None
    deadline = time.monotonic() + 10
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_every_difference_of_a_proof_is_noted_at_its_place(tmp_path):
    import aiohttp
    from aiohttp import web
    from gpu_pieces.noise import Proofs

    from nip_lm_server.engines.base import Upstream

    own = {"base": -2.0, "ft:1": -1.0, "ft:2": -4.0}

    def saved(model, place):
        return own[model] - 0.01 * place

    async def complete(request):
        body = await request.json()
        served = saved(body["model"], len(body["prompt"]) - 1) + 0.01
        choice = {"token_ids": body["allowed_token_ids"], "logprobs": {"token_logprobs": [served]}}
        return web.json_response({"model": body["model"], "choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    paths = {name: tmp_path / name[-1] / "out" for name in ("ft:1", "ft:2")}
    for name, path in paths.items():
        path.mkdir(parents=True)
        (path / "adapter_config.json").write_text('{"r": 4}')
        (path / "adapter_model.safetensors").write_text(name)
        each = {m: [saved(m, place) for place in range(40)] for m in (name, "base")}
        probe = {"logprobs": each[name], "base_logprobs": each["base"], "dtype": "bfloat16"}
        (path / "probe.json").write_text(json.dumps({**probe, "tokens": [*range(41)]}))
    engine = SimpleNamespace(
        upstream=Upstream(f"http://127.0.0.1:{runner.addresses[0][1]}", "key"),
        status=lambda: {"device": "cuda:0", "dtype": "bfloat16"},
        max_model_len=512,
    )
    async with aiohttp.ClientSession() as http:
        proofs = Proofs(engine, paths, http)
        assert (await proofs.prove("ft:1", paths["ft:1"])).matches
        noted = [(n["model"], len(n["each"]), {*n["each"]}) for n in proofs.differences]
        assert not (await proofs.prove("ft:1", paths["ft:2"])).matches
    await runner.cleanup()
    assert noted == [("ft:1", 32, {0.01}), ("base", 32, {0.01})]


def test_copies_of_an_adapter_are_models_of_a_server_that_is_to_start(tmp_path):
    from contextlib import closing

    from gpu_pieces.adapters import fill, name_of

    from nip_lm_server.state.database import Database
    from nip_lm_server.state.models import ModelStore

    trained, state = tmp_path / "job" / "out", tmp_path / "state"
    trained.mkdir(parents=True)
    (trained / "adapter_model.safetensors").write_bytes(b"weights")
    (tmp_path / "job" / "job.json").write_text('{"hyperparameters": {"lora_rank": 8}}')
    names = [name_of(number) for number in range(3)]
    for _ in range(2):  # a piece that was killed begins anew
        fill(trained, state, names)
    assert (trained / "adapter_model.safetensors").exists() and len({*names}) == 3
    with closing(Database(state / "jobs.sqlite3")) as database:
        rows = ModelStore(state / "models", database).list_adapters("base")
    assert {row.name for row in rows} == {*names}
    assert len({row.content_digest for row in rows}) == 1
    assert [path.name for path in tmp_path.iterdir() if "copies" in path.name] == []


def test_a_tree_that_is_not_installed_has_its_games_and_commands(tmp_path):
    from importlib.metadata import distributions, entry_points

    from gpu_pieces.tree import write_metadata

    found = {each.name: each for each in distributions(path=[str(write_metadata(tmp_path))])}
    assert {"nip-loop", "nip-base", "nip-lm-server", "nip-games"} <= {*found}
    games, installed = found["nip-games"].entry_points, entry_points(group="nip.scenarios")
    assert {(p.group, p.name, p.value) for p in games} <= {
        (p.group, p.name, p.value) for p in installed
    }
    assert "arithmetic" in {p.name for p in games}


def test_outcomes_of_tests_are_read_from_their_report(tmp_path):
    from gpu_pieces.tests import outcomes

    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="right" time="1.5"/>'
        '<testcase name="wrong" time="2"><failure message="2 is not 1">tail</failure></testcase>'
        '<testcase name="left" time="0"><skipped message="needs two CUDA devices"/></testcase>'
        "</testsuite></testsuites>"
    )
    row = outcomes(report)
    assert (row["passed"], row["skipped"]) == (1, {"left": "needs two CUDA devices"})
    assert row["failed"] == {"wrong": "2 is not 1 tail"} and row["seconds"]["right"] == 1.5


def test_the_page_says_what_is_missing(tmp_path):
    from gpu_pieces.page import page

    out = tmp_path / "out.json"
    measured = piece(out, "engines")
    measured.row("vllm cold", lambda: {"start_s": 90.5, "running": {"gpu_used_gb": 55.0}})
    measured.without("there is no vLLM | here", "vllm warm")
    text = page(json.loads(out.read_text()))
    assert "start_s 90.5" in text and "running: gpu_used_gb 55.0" in text
    assert "not measured: there is no vLLM / here" in text
    assert "A rehearsal" in text and "**Not finished.**" in text
