"""Adapters of the Hub that agents begin with, on their way to the run's own server.

find_published   the adapter that a setting names: pinned, downloaded, checked against its base
bring_published  the same among the models of a server's state

It is a model of the run from then on: it stands in run.json with its commit and its digest, and is
proved before it plays, as one that the run has trained. The Hub is not asked again.
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue, ValidationError

from nip_base.formats.bounds import parse_json
from nip_base.temporary_folders import held_folder
from nip_bridges.hub.adapter_of_run import CONFIG, WEIGHTS, weights_digest
from nip_bridges.hub.client import Hub
from nip_bridges.hub.nip_json import AdapterFacts, HubDocument, TablesFacts
from nip_bridges.hub.repository import list_patterns, read_sealed
from nip_core.errors import CorruptionError, SettingsError, StoreError
from nip_core.models import locate_model
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.hosting import find_host
from nip_core.parameters.derived.model_names import base_name
from nip_core.parameters.services.published import Reference
from nip_core.records.models import ServedModel
from nip_core.run_store.documents import first_fault
from nip_lm_server.client import LaidOut, ModelError, StateDirectory, lay_out_adapter


@dataclass(frozen=True)
class PublishedModel:
    """A downloaded adapter, and the model it makes for a group."""

    folder: Path
    """In the Hub's cache."""
    reference: Reference
    """Pinned."""
    base_model: str
    """The name under which the base model answers."""
    facts: Mapping[str, JsonValue]
    """Of its training, as a server writes them down."""
    trained_in: int

    def lay_out(self, folder: Path) -> LaidOut:
        """Copy it to ``folder/models``. Raises SettingsError if it is no LoRA adapter."""
        try:
            return lay_out_adapter(
                self.folder,
                folder,
                base_model=self.base_model,
                suffix=self.reference.repository,
                key=str(self.reference),
                facts=self.facts,
            )
        except ModelError as error:
            raise SettingsError(f"{self.reference}: {error}") from None

    def model(self) -> ServedModel:
        """Return the model of the adapter, not proved yet."""
        with held_folder("nip-published-") as folder:
            laid_out = self.lay_out(folder)
        return ServedModel(
            model=laid_out.name,
            base_model=self.base_model,
            trained_in=self.trained_in,
            digest=laid_out.digest,
            from_run=str(self.reference),
            kind="adapter",
        )


def find_published(
    parameters: HyperParameters, name: str, connect: Callable[[], Hub]
) -> PublishedModel:
    """Find the adapter an agent begins with. Raises SettingsError if it can't play here."""
    agent = parameters.model_agents[name]
    assert agent.published_adapter is not None
    setting = f"agents.{name}.published_adapter"
    if not find_host(parameters, agent).takes_adapters:
        raise SettingsError(
            f"{setting}: an adapter of the Hub is served by the run's own server, and this agent's "
            "model is elsewhere; leave out its address (base_url, lm_server.url)"
        )
    # 1. Which commit it is, once and for all; its files, from the cache if they are there.
    hub = connect()
    reference = hub.pin(Reference.parse(agent.published_adapter))
    folder = hub.download(reference, list_patterns("adapter"))
    place = f"{setting}: {reference}"
    # 2. They are the files of their publisher.
    facts = read_sealed(folder, place)
    if isinstance(facts, TablesFacts):
        raise SettingsError(f"{place} is a repository of data; name one with an adapter")
    config = _read_config(folder, place)
    # 3. An adapter plays over the base model that it was trained on, and over no other.
    _check_base(place, facts, config, agent.model_name)
    needs_probe = not parameters.lm_server.capabilities.proves_weights
    if needs_probe and not (folder / "probe.json").is_file():
        raise SettingsError(
            f"{place} has no probe.json, by which lm_server.engine: "
            f"{parameters.lm_server.engine} proves what it serves; use embedded, or "
            "an adapter that `nip push` published"
        )
    base = base_name(parameters, agent)
    return PublishedModel(
        folder,
        reference,
        base,
        _collect_training(facts),
        0 if facts is None else facts.lineage.iteration or 0,
    )


def bring_published(models: Iterable[PublishedModel], state_dir: Path) -> None:
    """Copy adapters into the state of the run's own server. It must not run meanwhile.

    Raises CorruptionError for one that changed on the way, StoreError if the disk refuses.
    """
    for published in models:
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=state_dir, prefix="fetched-") as folder:
                laid_out = published.lay_out(Path(folder))
                StateDirectory(state_dir).import_models(
                    Path(folder), {laid_out.name: laid_out.digest}
                )
        except ModelError as error:
            raise CorruptionError(f"{published.reference}: {error}") from error
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{state_dir}: {published.reference}: {error}") from error


class AdapterConfig(HubDocument):
    """The file ``adapter_config.json``, of which PEFT reads more."""

    peft_type: JsonValue = None
    base_model_name_or_path: JsonValue = None


def _read_config(folder: Path, place: str) -> AdapterConfig:
    lacking = [file for file in (CONFIG, WEIGHTS) if not (folder / file).is_file()]
    if lacking:
        raise SettingsError(
            f"{place} is no adapter: it has no {' and no '.join(lacking)}; weights are read as "
            "safetensors alone"
        )
    try:
        document = parse_json((folder / CONFIG).read_text(encoding="utf-8"))
        config = AdapterConfig.model_validate(document)
    except ValidationError as error:
        raise SettingsError(f"{place}: {CONFIG} can't be read: {first_fault(error)}") from None
    except (ValueError, TypeError) as error:
        raise SettingsError(f"{place}: {CONFIG} can't be read: {error}") from None
    if config.peft_type != "LORA":
        raise SettingsError(f"{place}: expected peft_type LORA, got {config.peft_type!r}")
    return config


def _check_base(
    place: str, facts: AdapterFacts | None, config: AdapterConfig, model_name: str
) -> None:
    published, digest = config.base_model_name_or_path, None
    if facts is not None:
        if facts.base is None:
            raise SettingsError(f"{place}: nip.json does not say which base model it is for")
        published, digest = facts.base.name, facts.base.weights_sha256
    directory = Path(locate_model(model_name)).expanduser()
    local_digest = weights_digest(directory) if directory.is_dir() and digest is not None else None
    if local_digest is not None and local_digest == digest:
        return
    if published != model_name:
        raise SettingsError(
            f"{place} is an adapter over the base model {published!r}, but model_name is "
            f"{model_name!r}; set model_name to its base model"
        )
    if local_digest is not None and digest is not None:
        raise SettingsError(
            f"{place} was trained over other weights of {model_name!r} than those that are here "
            f"(SHA-256 {digest[:12]}…, here {local_digest[:12]}…); take the base model that it was "
            "trained on"
        )


def _collect_training(facts: AdapterFacts | None) -> dict[str, JsonValue]:
    """Collect what is known of the training: nothing, if nip has not published the adapter."""
    if facts is None:
        return {}
    settings = facts.training.settings
    return {
        "method": facts.training.method,
        "settings": None if settings is None else dict(settings),
        "seed": facts.lineage.training_seed,
    }
