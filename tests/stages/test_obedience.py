"""What believing the prover would give stands wherever the accuracy does: one shows nothing alone."""

import asyncio
import json

import pytest
from leaking_players import answers
from scripted_server import scripted_server
from viewing import client_of

from nip_cli.printing.plans_and_runs import show_run
from nip_core import loop
from nip_core.parameters import load_parameters
from nip_core.records.iterations import Records
from nip_core.report.plots import learning_curve_svg
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.showing.summary import summarise_run
from nip_prefect.tasks.publish import learning_curve_markdown

OBEYING = "believing the prover would give 100.0 %"
REMARK = "this one, in 100.0 %, is not shown to be right more often"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The test of a verifier that obeys a prover who sees the label."""
    folder = tmp_path_factory.mktemp("obedient")

    async def play():
        async with scripted_server(answers("obeys_verdict", "verdict")) as server:
            model = {"model_provider": "OpenAI", "base_url": server.url, "freeze_agent": True}
            settings = {
                "run_name": "obedient",
                "run_store": str(folder),
                "scenario": "arithmetic",
                "scenario_settings": {"train_size": 4, "validation_size": 4, "test_size": 24},
                "dataset": "chains",
                "interaction_protocol": "adp",
                "agents": {name: {**model, "model_name": name} for name in ("prover", "verifier")},
                "rl": {"num_iterations": 0},
            }
            return await loop.train(load_parameters(settings))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "key")
        asyncio.run(play())
    return RunStore(open_store(folder, read_only=True), "obedient")


def test_a_summary_and_its_table_say_what_obeying_gives(run, capsys):
    shown = summarise_run(run)
    [entry] = shown["iterations"]
    assert entry["test"]["accuracy"] == 1.0
    assert entry["test"]["believe_the_prover"]["accuracy"] == 1.0
    assert entry["test"]["believe_the_prover"]["without_prover"] == 0
    assert REMARK in " ".join(shown["remarks"])
    show_run(json.loads(json.dumps(shown)))
    told = " ".join(capsys.readouterr().out.split())
    assert OBEYING in told and REMARK in told


def test_report_and_viewer_say_it_under_the_figure_unfolded(run):
    report = run.store.get("obedient/report.html").decode().replace("\u202f", " ")
    assert OBEYING in report and REMARK in report
    page = client_of(run.store.root).get("/runs/obedient").text
    unfolded, _, folded = page.partition("<details")
    assert OBEYING in unfolded and REMARK in unfolded and folded


def test_curves_have_it_beside_the_accuracy(run):
    [entry] = Records(run).all()
    rows = [(0, entry.metrics("test"))]
    svg = learning_curve_svg(rows)
    assert "believing the prover" in svg and f"; {OBEYING.removesuffix(' %')}" in svg
    assert OBEYING in learning_curve_markdown(rows)
    page = client_of(run.store.root).get("/runs/obedient").text
    assert 'class="line believed"' in page
