"""The pages of an adapter and of a dataset on the Hub: YAML that programs read, then text.

adapter_card, dataset_card  a page, of the facts that stand in ``nip.json`` and nothing else

Results stand in `model-index` as the Hub reads them, with each 95 % interval among a metric's
arguments. A licence is there only where the publisher has named one.
"""

from collections.abc import Mapping, Sequence

import yaml
from pydantic import JsonValue

from nip_bridges.hub.nip_json import (
    AdapterFacts,
    BaseFacts,
    Lineage,
    ProofFacts,
    ResultFacts,
    TablesFacts,
    TrainingFacts,
)
from nip_core.evaluation.figures_in_words import amount
from nip_core.models import KNOWN
from nip_lm_server.client import served_lora_rank

_Fact = tuple[str, str | int | None]
"""A row of a table: what it is called, and what it is; None: nobody knows it."""

_DIGESTS = (
    "Digests are SHA-256. `nip.json` has all this for programs, and the digest of every file."
)
_WORDS = {
    "accuracy": "accuracy: the verifier's decision is right",
    "completeness": "completeness: a right solution is accepted",
    "soundness": "soundness: a wrong solution is rejected",
    "precision": "precision: what is accepted is right",
    "acceptance_rate": "accepted, of all",
    "no_decision_rate": "ended without a decision",
}


def adapter_card(place: str, facts: AdapterFacts) -> str:
    """Write the page of an adapter. `place` is its repository, or its directory."""
    lineage, base, results = facts.lineage, facts.base, facts.results
    assert base is not None and facts.rank is not None  # an adapter that is written has both
    name = place.rpartition("/")[2]
    head: dict[str, JsonValue] = {
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["nip", "neural-interactive-proofs", "lora"],
    }
    if not base.bundled and base.name not in KNOWN:
        head |= {"base_model": base.name, "base_model_relation": "adapter"}
    if facts.license:
        head["license"] = facts.license
    if results and results.measures:
        head["model-index"] = [{"name": name, "results": [_to_model_index(results)]}]
    agents = " and ".join(f"`{agent}`" for agent in lineage.agents)
    plural = "agents" if len(lineage.agents) > 1 else "agent"
    text = [
        f"# {name}",
        f"A LoRA adapter (rank {facts.rank}) over `{base.name}`. It plays the {plural} "
        f"{agents} of a neural interactive proof, in which provers and a verifier talk about a "
        "solution and the verifier decides; it was trained by nip, iteration "
        f"{lineage.iteration} of the run `{lineage.run}`.",
        "## Results",
        *_describe_results(results, facts.playing),
        "## Where it comes from",
        _write_table(("fact", "value"), _list_lineage(lineage, facts.training)),
        _DIGESTS,
        "Settings of the run that are not the defaults (places are left out):",
        _write_yaml(facts.settings),
        "## Proof",
        *_describe_proof(facts.proof, facts.has_probe),
        "## Use it",
        *_describe_use(place, base, served_lora_rank(facts.rank)),
        "## Licence",
        _describe_licence(facts.license, f"The base model `{base.name}` has a licence of its own."),
    ]
    return _write_page(head, text)


def dataset_card(place: str, facts: TablesFacts) -> str:
    """Write the page of a run's rollouts and training examples. `place` is its repository."""
    lineage, tables = facts.lineage, facts.tables
    name = place.rpartition("/")[2]
    head: dict[str, JsonValue] = {
        "tags": ["nip", "neural-interactive-proofs"],
        "configs": [
            {
                "config_name": table,
                **({"default": True} if table == "episodes" else {}),
                "data_files": [
                    {"split": split, "path": f"{table}/{split}/*.parquet"}
                    for split in tables[table].splits
                ],
            }
            for table in tables
        ],
    }
    if facts.license:
        head["license"] = facts.license
    rows = [
        (f"`{table}`", f"`{split}`", part.rows, ", ".join(map(str, part.iterations)))
        for table, of in tables.items()
        for split, part in of.splits.items()
    ]
    text = [
        f"# {name}",
        "What agents of a neural interactive proof said and decided, and what was chosen of it to "
        f"train them: the run `{lineage.run}` of nip.",
        "## Tables",
        _write_table(("table", "split", "rows", "iterations"), rows),
        _write_python(
            "from datasets import load_dataset",
            "",
            *(
                f'{table.replace("-", "_")} = load_dataset("{place}", "{table}")'
                for table in list(tables)[:3]
            ),
        ),
        "`generations.episode` is `episodes.key`; `episode` of the training examples is "
        "`episodes.key`, and their `generations` lists keys of `generations`. `y` is the true "
        "label (1 right, 0 wrong), `decision` the verdict (0 reject, 1 accept, 2 none, 3 neither).",
        "## Columns",
        *(
            part
            for table, of in tables.items()
            for part in (f"**`{table}`**", _write_table(("column", "type"), of.columns))
        ),
        "## Where it comes from",
        _write_table(("fact", "value"), _list_data_lineage(facts)),
        _DIGESTS,
        "Settings of the run that are not the defaults (places are left out):",
        _write_yaml(facts.settings),
        "Left out: times of calls, transcripts, and in the column `error` addresses and paths. The "
        "texts are what models wrote and what they were asked, unchanged.",
        "## Licence",
        _describe_licence(
            facts.license, "The problems have the licence of the dataset they are from."
        ),
    ]
    return _write_page(head, text)


def _to_model_index(results: ResultFacts) -> dict[str, JsonValue]:
    """Give the results as an entry of `model-index`."""
    args: dict[str, JsonValue] = {
        "scenario": results.scenario,
        "protocol": results.protocol,
        "episodes": results.episodes,
        "problems": results.problems,
        "questions": results.questions,
    }
    return {
        "task": {"type": "text-generation", "name": f"nip: {results.protocol}"},
        "dataset": {
            "type": results.dataset,
            "name": results.dataset,
            "split": results.split,
            "args": args,
        },
        "metrics": [
            {
                "type": name,
                "name": name,
                "value": entry.value,
                "args": {"ci95": None if entry.ci95 is None else [*entry.ci95]},
            }
            for name, entry in results.measures.items()
        ],
    }


def _describe_results(results: ResultFacts | None, playing: Mapping[str, str]) -> list[str]:
    if results is None:
        return ["Not tested: the run has no test of the iteration that this adapter plays."]
    rows = [
        (_WORDS[name], f"{entry.value:.4g}", _write_range(entry.ci95))
        for name, entry in results.measures.items()
    ]
    amounts = f"{amount(results.episodes, 'episode')}, {amount(results.problems, 'problem')}"
    if results.questions is not None:
        amounts += f", {amount(results.questions, 'question')}"
    models = ", ".join(f"{group}: `{model}`" for group, model in playing.items())
    return [
        f"The run's test of iteration {results.iteration}: `{results.dataset}`, split "
        f"`{results.split}`, protocol `{results.protocol}` ({amounts}; played by {models}).",
        _write_table(("measure", "value", "95 % interval"), rows),
        "Intervals count questions, not episodes. The figures are those of the game with these "
        "players: against other provers they may be others.",
    ]


def _list_lineage(lineage: Lineage, training: TrainingFacts) -> list[_Fact]:
    rows: list[_Fact] = [
        ("run", lineage.run),
        ("iteration that trained it", lineage.iteration),
        ("model", f"`{lineage.model}`"),
        ("taken over from", lineage.from_run),
        ("the run began with", lineage.begun_with),
        ("content digest", f"`{lineage.content_digest}`"),
        ("job", lineage.job),
        ("job key", lineage.job_key),
        ("trained on (digest of the dataset)", lineage.dataset_digest),
        ("examples", lineage.examples),
        ("parent", f"`{lineage.parent}`"),
        ("content digest of the parent", lineage.parent_content_digest),
        *((f"problems, {split}", digest) for split, digest in lineage.problems.items()),
        ("method", training.method),
        ("steps", training.steps),
        ("tokens trained on", training.tokens),
        ("seed of the run", lineage.seed),
        ("seed of the training", lineage.training_seed),
        ("version of nip", lineage.code_version),
    ]
    return [row for row in rows if row[1] is not None]


def _list_data_lineage(facts: TablesFacts) -> list[_Fact]:
    lineage = facts.lineage
    rows: list[_Fact] = [
        ("run", lineage.run),
        ("seed of the run", lineage.seed),
        ("version of nip", lineage.code_version),
        *((f"problems, {split}", digest) for split, digest in lineage.problems.items()),
        *((f"rollouts, {name}", digest) for name, digest in facts.rollouts.items()),
        *((f"dataset, {name}", digest) for name, digest in facts.datasets.items()),
    ]
    return [row for row in rows if row[1] is not None]


def _describe_proof(proof: ProofFacts, has_probe: bool) -> list[str]:
    if proof.matches is None:
        return ["The run has no proof on record that a server answered with these weights."]
    outcome = "did" if proof.matches else "did not"
    compared = "what the server gave for this adapter was compared with what its saved files give"
    lines = [f"Before it played, {compared}. They {outcome} agree."]
    if rows := [
        (name.replace("_", " "), _write_value(value)) for name, value in proof.detail.items()
    ]:
        lines.append(_write_table(("compared", "came to"), rows))
        lines.append("Distances are mean absolute differences of log-probabilities, in nats.")
    if has_probe:
        lines.append(
            "`probe.json` has log-probabilities of the adapter and of its base on a fixed text, by "
            "which nip proves it again wherever it plays. It has no tokens of the training data; "
            "the probe of the training, which has some, was not published."
        )
    return lines


def _describe_use(place: str, base: BaseFacts, highest: int) -> list[str]:
    if base.bundled:
        folder = "base"
        load = [
            f'folder = snapshot_download("{place}")  # or the directory, where you have it',
            f'base = AutoModelForCausalLM.from_pretrained(f"{{folder}}/{folder}")',
            f'tokenizer = AutoTokenizer.from_pretrained(f"{{folder}}/{folder}")',
        ]
        served_model = f"DIR/{folder}"
        remark = [
            f"The base model `{base.name}` comes with nip and is on no hub under this name, so "
            f"it lies in the folder `{folder}`."
        ]
    else:
        model = KNOWN.get(base.name)
        served_model = base.name if model is None else "BASE"
        load = [
            f'folder = snapshot_download("{place}")  # or the directory, where you have it',
            f'base = AutoModelForCausalLM.from_pretrained("{served_model}")',
            f'tokenizer = AutoTokenizer.from_pretrained("{served_model}")',
        ]
        remark = (
            []
            if model is None
            else [
                f"The base model `{base.name}` is {model.title} as `{model.command}` of nip makes "
                f"it, from {model.requirement} of the package index. BASE is its directory, as "
                f"`nip models path {base.name}` prints it."
            ]
        )
    return [
        *remark,
        _write_python(
            "from huggingface_hub import snapshot_download",
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            *load,
            "model = PeftModel.from_pretrained(base, folder)",
        ),
        "With vLLM, after a download to DIR:",
        f"```sh\nvllm serve {served_model} --enable-lora --max-lora-rank {highest} \\\n"
        "  --lora-modules nip=DIR\n```",
        "A run of nip begins with it by an agent's setting "
        "`published_adapter: hf://OWNER/NAME@REVISION`.",
    ]


def _describe_licence(licence: str | None, others: str) -> str:
    if licence:
        return f"Published under `{licence}`, as whoever published it said. {others}"
    return f"Whoever published this has named no licence, so none is stated here. {others}"


def _write_page(head: Mapping[str, JsonValue], text: Sequence[str]) -> str:
    # By hand, and not by `huggingface_hub.ModelCardData`: that package is an extra, and `nip export
    # --to peft` writes this page without it.
    front = yaml.safe_dump(dict(head), sort_keys=False, allow_unicode=True, width=10_000)
    return f"---\n{front}---\n\n" + "\n\n".join(text) + "\n"


def _write_table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(_write_cell(cell) for cell in line) + " |" for line in lines)


def _write_cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def _write_yaml(value: Mapping[str, JsonValue]) -> str:
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True) if value else "{}\n"
    return f"```yaml\n{text}```"


def _write_python(*lines: str) -> str:
    return "```python\n" + "\n".join(lines) + "\n```"


def _write_range(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}"


def _write_value(value: JsonValue) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
