"""What a run has used so far, from its committed records: tokens and money by stage."""

from typing import Any

from nip_core.parameters import HyperParameters
from nip_core.parameters.prices import calls_usd, training_usd
from nip_core.rollouts.plan import CANDIDATE, TEST, TRAIN, VALIDATION
from nip_core.run_store.run import RunStore

# By split, in the order of an iteration.
_STAGES = {TEST: "test", TRAIN: "play", VALIDATION: "gate, old", CANDIDATE: "gate, new"}


def spent(run: RunStore, parameters: HyperParameters) -> list[dict[str, Any]]:
    """One row per stage that is committed, and a last one with the sums.

    Tokens are counts, ``USD`` a text: "0.00" on hardware of one's own, "unknown" where
    `parameters.prices` lacks the price of a model that somebody sends a bill for. Answers that
    were thrown away by a crash before they were recorded are not in it.
    """
    rows: list[dict[str, Any]] = []
    usd: list[float | None] = []
    for iteration in range(parameters.rl.num_iterations + 1):
        if not run.store.list(run.iteration(iteration)):
            continue
        for split, stage in _STAGES.items():
            metrics = run.read_json_or_none(run.metrics(iteration, split))
            if metrics is not None:
                usd.append(_calls_usd(parameters, metrics))
                rows.append(
                    {
                        "iteration": iteration,
                        "stage": stage,
                        "calls": metrics.get("generations") or 0,
                        "prompt tokens": metrics.get("prompt_tokens") or 0,
                        "generated tokens": metrics.get("completion_tokens") or 0,
                        "trained tokens": 0,
                    }
                )
        for group in parameters.trainable_groups:
            job = run.read_json_or_none(run.job(iteration, group))
            if job is not None:
                tokens = job.get("trained_tokens") or 0
                usd.append(training_usd(parameters, group, tokens))
                rows.append(
                    {
                        "iteration": iteration,
                        "stage": f"train {group}",
                        "calls": 0,
                        "prompt tokens": 0,
                        "generated tokens": 0,
                        "trained tokens": tokens,
                    }
                )
    counted = ("calls", "prompt tokens", "generated tokens", "trained tokens")
    total = {name: sum(row[name] for row in rows) for name in counted}
    rows.append({"iteration": "all", "stage": "sum", **total})
    known = [amount for amount in usd if amount is not None]
    usd.append(sum(known) if len(known) == len(usd) else None)
    return [
        {**row, "USD": "unknown" if amount is None else f"{amount:.2f}"}
        for row, amount in zip(rows, usd, strict=True)
    ]


def _calls_usd(parameters: HyperParameters, metrics: dict[str, Any]) -> float | None:
    agents: dict[str, dict[str, int | None]] = metrics.get("agents") or {}
    return calls_usd(
        parameters,
        {
            name: (used.get("prompt_tokens") or 0, used.get("completion_tokens") or 0)
            for name, used in agents.items()
        },
    )
