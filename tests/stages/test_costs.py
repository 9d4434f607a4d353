"""What a run has used: tokens by stage, and dollars where somebody sends a bill."""

import pytest
from job_documents import job_document
from small_game import write_config

from nip_core.parameters import load_parameters
from nip_core.run_store.run import Identity, RunStore
from nip_core.run_store.store import open_store
from nip_core.stages.publishing import list_spending

PAID = {"_default": {"model_provider": "OpenAI", "model_name": "gpt-4o-mini"}}
PRICES = {"gpt-4o-mini": {"prompt_usd": 1.0, "completion_usd": 2.0, "training_usd": 3.0}}


def played(folder, **changes):
    """A run of which one split and one job are on record."""
    parameters = load_parameters(write_config(folder, **changes))
    run = RunStore(open_store(folder / "runs"), "small")
    run.create_or_open(Identity(parameters.to_dict(), "1", parameters.seed))
    tokens = {"prompt_tokens": 1_000_000, "completion_tokens": 500_000}
    metrics = {
        "generations": 300,
        "prompt_tokens": 2_000_000,
        "completion_tokens": 1_000_000,
        "agents": {"prover": tokens, "verifier": tokens},
    }
    run.write_json_once(run.metrics(0, "train"), metrics)
    facts = {"id": "j", "outcome": "succeeded", "status": "succeeded", "trained_tokens": 100_000}
    run.write_json_once(run.job(0, "prover"), job_document(run="small", group="prover", **facts))
    return list_spending(run, parameters)


@pytest.mark.parametrize(
    ("changes", "usd"),
    [
        ({}, ["0.00", "0.00", "0.00"]),
        ({"agents": PAID}, ["unknown", "unknown", "unknown"]),
        ({"agents": PAID, "prices": PRICES}, ["4.00", "0.30", "4.30"]),
    ],
)
def test_each_stage_has_its_tokens_and_its_price(changes, usd, tmp_path):
    rows = played(tmp_path, **changes)
    assert [(row["iteration"], row["stage"]) for row in rows] == [
        (0, "play"),
        (0, "train prover"),
        ("all", "sum"),
    ]
    assert rows[0]["prompt tokens"] == 2_000_000 and rows[0]["calls"] == 300
    assert rows[1]["trained tokens"] == rows[2]["trained tokens"] == 100_000
    assert [row["USD"] for row in rows] == usd
