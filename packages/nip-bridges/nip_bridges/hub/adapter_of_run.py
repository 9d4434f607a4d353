"""A trained model of a run as others take it: a plain adapter of PEFT, and its facts.

choose_model                  the model of a group in an iteration, with where it comes from
write_adapter                 its files, its facts and its card, into a new directory
select_settings, read_result  what cards say of a run

The base model has a portable name there: that of the Hub, a bundled one's, or the one that the
caller says; never a path. A bundled base, which no hub has, lies in the folder ``base``. The probe
of the training has tokens of its data, so it stays here.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue, ValidationError

from nip_base.disk import MANIFEST
from nip_base.formats.bounds import parse_json
from nip_base.manifest import CHECKSUM, checksum_of, content_digest
from nip_base.spec import base_served_name
from nip_base.temporary_folders import held_folder
from nip_bridges.hub.cards import adapter_card
from nip_bridges.hub.nip_json import (
    AdapterFacts,
    BaseFacts,
    FileEntry,
    HubDocument,
    Lineage,
    MeasureFacts,
    ProofFacts,
    ResultFacts,
    TrainingFacts,
)
from nip_bridges.hub.privacy import hide_lineage, without_places
from nip_bridges.hub.repository import CARD, new_directory, seal
from nip_core.errors import CorruptionError, SettingsError, StoreError
from nip_core.evaluation.split_metrics import SplitMetrics
from nip_core.jobs.document import read_job
from nip_core.models import BUNDLED, KNOWN, locate_model, resolve_model
from nip_core.parameters.basis.base import Parameters
from nip_core.parameters.derived.model_names import dummy_name
from nip_core.parameters.stored import complete_settings, read_settings
from nip_core.records.intervals import read_shown_metrics
from nip_core.records.models import ServedModel, read_models
from nip_core.rollouts.plan import TEST
from nip_core.run_store.documents import first_fault
from nip_core.run_store.run import RunRecord, RunStore, read_document
from nip_core.servers.kept_models import fetch_model, is_kept
from nip_lm_server.client import StateDirectory

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE_FOLDER = "base"
MEASURES = (
    *("accuracy", "completeness", "soundness", "precision"),
    *("acceptance_rate", "no_decision_rate"),
)
_OF_A_TRAINING = ("steps", "tokens", "final_loss", "mean_loss", "validation_loss", "unchanged")
_OF_A_PROOF = (
    *("kind", "dtype", "quantization", "probe_tokens", "weights_equal", "unchanged"),
    *("distance", "distance_mean", "distance_max", "tolerance", "noise_mean", "rounding"),
    *("nearest_other", "nearest_other_distance_mean", "nearer_than_own", "indistinguishable"),
    *("same_weights_as", "base_distance", "probe_file_matches", "probe_file_distance"),
)


@dataclass(frozen=True)
class ChosenModel:
    """A trained model of a run, chosen by its group and an iteration."""

    run: RunStore
    record: RunRecord
    iteration: int
    group: str
    agents: tuple[str, ...]
    model: ServedModel
    base: str
    """The base model, as the settings name it."""
    playing: Mapping[str, str]
    """By group, the names of all models that play the iteration."""


class ModelManifest(HubDocument):
    """The manifest of a model's directory, as the server has written it."""

    content_digest: str
    kind: str = "adapter"
    base_model: str
    job: str
    job_key: str | None = None
    parent: str | None
    parent_content_digest: str | None = None
    method: str
    settings: Mapping[str, JsonValue]
    lora_rank: int | None = None
    seed: int
    training: Mapping[str, JsonValue]
    """Figures by name."""
    files: Mapping[str, FileEntry]


def choose_model(run: RunStore, iteration: int | None, group: str | None) -> ChosenModel:
    """Choose the trained model of `group` in `iteration`.

    None means the newest iteration, and the only group with a trained model.

    Raises SettingsError if there is none, or several.
    """
    record, finished = run.open(), run.finished_iterations()
    number = finished if iteration is None else iteration
    if number > finished:
        raise SettingsError(
            f"--iteration {number}: run {run.name!r} has finished {finished} iterations, so the "
            f"models that play it are not there yet; the newest play iteration {finished}"
        )
    # 1. The models that play the iteration.
    models = read_models(run, number)
    groups = [name for name, model in models.items() if model.trained_in is not None]
    # 2. Which group is meant.
    if group is not None and group not in models and group not in _list_groups(record):
        raise SettingsError(
            f"--group {group!r}: run {run.name!r} has no such model group; it has "
            f"{', '.join(_list_groups(record))}"
        )
    if not groups or (group is not None and group not in groups):
        raise SettingsError(
            f"run {run.name!r}: iteration {number} is played with "
            f"{'base models' if group is None else f'the base model of group {group!r}'}, so there "
            "is no trained model; choose a later --iteration, or train first"
        )
    if group is None and len(groups) > 1:
        raise SettingsError(
            f"run {run.name!r} has trained models of the groups {', '.join(groups)}; choose one "
            "with --group"
        )
    group_name = group or groups[0]
    agents = _list_groups(record)[group_name]
    base = str(complete_settings(record.parameters)["agents"][agents[0]]["model_name"])
    playing = {name: models[name].model if name in models else "" for name in _list_groups(record)}
    playing = {name: model or _find_base(record, name) for name, model in playing.items()}
    return ChosenModel(run, record, number, group_name, agents, models[group_name], base, playing)


def write_adapter(
    chosen: ChosenModel,
    target: Path,
    *,
    place: str,
    base: str | None = None,
    license_id: str | None = None,
    probe: bool = False,
) -> AdapterFacts:
    """Write the adapter, ``nip.json`` and the card to the new directory `target`.

    `place` is its name on the card. `base` is the name by which others find the base model;
    `probe`: with log-probabilities on a fixed text, by which its next user proves it again.

    Raises SettingsError if it is no adapter, or its base model has no name that others know, or
    can't be read for the probe;
    CorruptionError if its files are not those on record.
    """
    name = _choose_portable_base(chosen, base)
    with _find_files(chosen) as source:
        # 1. The files are those on record.
        manifest = verify_model(source, chosen.model.digest)
        _check_is_adapter(chosen, source, manifest)
        facts = _collect_facts(chosen, manifest, name, license_id, probe)
        with new_directory(target) as part:
            # 2. The adapter: its weights as they are, its base by a name.
            shutil.copyfile(source / WEIGHTS, part / WEIGHTS)
            config = parse_json((source / CONFIG).read_text(encoding="utf-8"))
            config["base_model_name_or_path"], config["revision"] = name, None
            (part / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
            if name in BUNDLED:
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(BUNDLED[name], part / BASE_FOLDER, ignore=ignored)
            if probe:
                _write_probe(chosen, source, part)
            # 3. Its facts.
            (part / CARD).write_text(adapter_card(place, facts), encoding="utf-8")
            sealed = seal(part, facts)
            # 4. The written files are those on record.
            if sealed.files[WEIGHTS] != manifest.files[WEIGHTS]:
                raise StoreError(f"{target}: {WEIGHTS} was not written as it is; write it again")
    return sealed


def verify_model(source: Path, on_record: str | None) -> ModelManifest:
    """Read the manifest of a model's directory and compare every file. Raises CorruptionError."""
    try:
        document = parse_json((source / MANIFEST).read_text(encoding="utf-8"))
        # Its own checksum first: a damaged manifest would put the blame on a file that is whole.
        if CHECKSUM in document and document[CHECKSUM] != checksum_of(document):
            raise CorruptionError(f"{source / MANIFEST}: damaged, its own checksum differs")
        manifest = ModelManifest.model_validate(document)
        for name, entry in manifest.files.items():
            if _sha256(source / name) != entry.sha256:
                raise CorruptionError(
                    f"{source / name}: damaged, its SHA-256 is not that of {MANIFEST}; restore it"
                )
        digest = content_digest(document["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, CorruptionError):
            raise
        reason = first_fault(error) if isinstance(error, ValidationError) else repr(error)
        raise CorruptionError(f"{source}: the model can't be read ({reason})") from error
    if digest != manifest.content_digest or on_record not in (None, digest):
        raise CorruptionError(
            f"{source}: the content digest of the model is {digest}, on record is "
            f"{on_record or manifest.content_digest}"
        )
    return manifest


def weights_digest(directory: Path) -> str | None:
    """Compute SHA-256 over a base model's weights in a directory; None if there are none."""
    files = sorted(directory.glob("*.safetensors"))
    listed = "".join(f"{path.name} {_sha256(path)}\n" for path in files)
    return hashlib.sha256(listed.encode()).hexdigest() if files else None


def select_settings(record: RunRecord) -> dict[str, JsonValue]:
    """Select the run's settings beside the defaults, without places.

    Returns {} for settings of a version that is not known here."""
    try:
        settings = read_settings(record.parameters)
    except ValueError:
        return {}
    changes: dict[str, JsonValue] = without_places(_find_changes(settings))
    return changes


def read_result(run: RunStore, record: RunRecord, iteration: int) -> ResultFacts | None:
    """Read the measures of an iteration's test with their intervals; None without a test."""
    metrics = read_document(run, run.metrics(iteration, TEST), SplitMetrics)
    if metrics is None:
        return None
    shown = read_shown_metrics(run, iteration, TEST, metrics).as_json()
    settings = complete_settings(record.parameters)
    return ResultFacts(
        split=str(settings["test_dataset_split"]),
        iteration=iteration,
        dataset=without_places(settings["dataset"]),
        scenario=without_places(settings["scenario"]),
        protocol=without_places(settings["interaction_protocol"]),
        episodes=shown["episodes"],
        problems=shown["distinct_problems"],
        questions=shown.get("questions"),
        measures={
            name: MeasureFacts(value=shown[name], ci95=shown.get(f"{name}_ci95"))
            for name in MEASURES
            if shown.get(name) is not None
        },
        rollouts=metrics.rollouts,
    )


def _list_groups(record: RunRecord) -> dict[str, tuple[str, ...]]:
    """List the agents of each model group, from a run's settings on record."""
    groups: dict[str, tuple[str, ...]] = {}
    for name, agent in complete_settings(record.parameters)["agents"].items():
        if not agent.get("is_random"):
            group = agent.get("shared_model_group") or name
            groups[group] = (*groups.get(group, ()), name)
    return groups


def _find_base(record: RunRecord, group: str) -> str:
    agent = complete_settings(record.parameters)["agents"][_list_groups(record)[group][0]]
    name_of = dummy_name if agent["use_dummy_api"] else base_served_name
    return str(without_places(name_of(agent["model_name"])))


def _choose_portable_base(choice: ChosenModel, name: str | None) -> str:
    """Choose the name of the base model for others. Raises SettingsError if there is none."""
    if choice.model.base_model.startswith("ft:"):
        raise SettingsError(
            f"model {choice.model.model} is an adapter over {choice.model.base_model}, a base "
            "model that the run has made; that one is not an adapter and is not written"
        )
    if name is not None:
        if os.path.exists(os.path.expanduser(name)) or name.startswith(("/", ".", "~")):
            raise SettingsError(f"--base-model {name}: others have no such path; give a Hub name")
        return name
    if choice.base in BUNDLED or choice.base in KNOWN:
        return choice.base
    if os.path.isdir(os.path.expanduser(choice.base)) or choice.base.startswith(("/", ".", "~")):
        raise SettingsError(
            f"the base model of group {choice.group!r} is a directory of this machine, "
            f"{choice.base}; say with --base-model OWNER/NAME where others find it"
        )
    return choice.base


@contextlib.contextmanager
def _find_files(choice: ChosenModel) -> Iterator[Path]:
    """Give the directory of the model: at the run's own server, or fetched from its bucket."""
    run, name = choice.run, choice.model.model
    state = run.store.local_path(f"{run.root}/lm_server")
    if state is not None and (path := StateDirectory(state).find_model(name)) is not None:
        yield path
        return
    if state is None and is_kept(run, name):
        with held_folder("nip-model-") as folder:
            fetch_model(run, name, folder)
            path = StateDirectory(folder).find_model(name)
            assert path is not None  # it was just put there
            yield path
            return
    raise SettingsError(
        f"run {run.name!r} does not have the weights of model {name}: they are at the server that "
        "trained it, and nip takes them from a run's own server alone"
    )


def _check_is_adapter(choice: ChosenModel, source: Path, manifest: ModelManifest) -> None:
    name = choice.model.model
    if manifest.kind != "adapter":
        raise SettingsError(
            f"model {name} is a whole model (use_lora: false), not an adapter; only adapters are "
            "written"
        )
    if WEIGHTS not in manifest.files or CONFIG not in manifest.files:
        raise SettingsError(
            f"model {name} has no weights: the deterministic engine made it, which has no model"
        )


def _write_probe(choice: ChosenModel, source: Path, part: Path) -> None:
    from nip_lm_server.client import ModelError, public_probe

    try:
        probe = public_probe(resolve_model(choice.base), source)
    except ModuleNotFoundError as error:
        raise SettingsError(
            "the probe that goes with a published adapter: it is computed with the package "
            f"{error.name}"
        ) from None
    except ModelError as error:
        raise SettingsError(
            f"the probe that goes with a published adapter: {' '.join(str(error).split())}; it is "
            "computed over the base model: bring that back, or write the adapter without a probe "
            "with `nip export --to peft`"
        ) from error
    (part / "probe.json").write_text(json.dumps(probe, indent=1) + "\n", encoding="utf-8")


def _collect_facts(
    choice: ChosenModel, manifest: ModelManifest, base: str, license_id: str | None, probe: bool
) -> AdapterFacts:
    directory = Path(locate_model(choice.base)).expanduser()
    proof = choice.model.proof or {}
    detail = {k: v for k, v in (proof.get("detail") or {}).items() if k in _OF_A_PROOF}
    training = {k: v for k, v in manifest.training.items() if k in _OF_A_TRAINING}
    settings = {"method": manifest.method, "settings": manifest.settings}
    return AdapterFacts(
        lineage=_trace_lineage(choice, manifest),
        license=license_id,
        has_probe=probe,
        base=BaseFacts(
            name=base,
            bundled=base in BUNDLED,
            weights_sha256=weights_digest(directory) if directory.is_dir() else None,
        ),
        rank=manifest.lora_rank,
        training=TrainingFacts.model_validate(settings | training),
        results=read_result(choice.run, choice.record, choice.iteration),
        playing=choice.playing,
        proof=ProofFacts(matches=proof.get("matches"), detail=without_places(detail)),
        settings=select_settings(choice.record),
    )


def _trace_lineage(choice: ChosenModel, manifest: ModelManifest) -> Lineage:
    """Say where the model comes from, without places."""
    run, record, model = choice.run, choice.record, choice.model
    job = None
    if model.from_run is None and model.trained_in is not None:
        job = read_job(run, run.job(model.trained_in, choice.group))
    origin = (record.contents.get("origin") or [{}])[0].get(choice.group, {})
    lineage = Lineage(
        run=run.name,
        iteration=model.trained_in,
        group=choice.group,
        agents=choice.agents,
        model=model.model,
        content_digest=manifest.content_digest,
        from_run=model.from_run,
        begun_with=origin.get("from_run"),
        job=manifest.job,
        job_key=manifest.job_key,
        dataset_digest=None if job is None else job.dataset_digest,
        examples=None if job is None else job.examples,
        parent=manifest.parent or manifest.base_model,
        parent_content_digest=manifest.parent_content_digest,
        problems=dict(record.contents.get("problems") or {}),
        seed=record.seed,
        training_seed=manifest.seed,
        code_version=record.code_version,
    )
    return hide_lineage(lineage)


def _find_changes(settings: Parameters) -> dict[str, JsonValue]:
    differing: dict[str, JsonValue] = {}
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, Parameters):
            if inner := _find_changes(value):
                differing[name] = inner
        elif isinstance(value, dict) and all(isinstance(v, Parameters) for v in value.values()):
            inner_by_key: dict[str, JsonValue] = {
                k: _find_changes(part) for k, part in value.items()
            }
            if inner_by_key:
                differing[name] = inner_by_key
        elif value != field.get_default(call_default_factory=True):
            differing[name] = settings.model_dump(mode="json", include={name})[name]
    return differing


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
