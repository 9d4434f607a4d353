"""The fine-tune jobs of a judge's hardening, each submitted once, by nip's ledger.

TrainingSettings  how a judge is trained; `read_training` reads it
split_overrides   overrides of the judge's file, and of the training
JudgeJobs         trains a model on examples, and proves that the new one answers
TrainedJudge      the model of a round

The record of round n's job is iteration n's of a run in the hardening's folder, so that a kill at
any point goes on with the same job.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nip_base.formats import MIN_EXAMPLES, describe_problems, to_jsonl, validate
from nip_base.formats.bounds import ReadError
from nip_base.formats.untrusted import parse_yaml
from nip_base.wire import NipSettings
from nip_core.errors import JobError, SettingsError, StageError
from nip_core.hashing import derive_seed, digest
from nip_core.jobs.job import Backend, BackendTrouble, JobRecord, JobSpec, ModelView
from nip_core.jobs.ledger import open_ledger
from nip_core.nearest import did_you_mean
from nip_core.parameters.services.dialects import find_dialect
from nip_core.rollouts.client.completions import Endpoint, RequestRefusedError
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_judges.judges.chat_asking import ModelSeat
from nip_judges.settings.judge_file import JudgeFile

GROUP = "judge"
_PLACE = "training."
_WORDS = ("n_epochs", "batch_size")
_PASSES = 3
_SETTLE_S, _OWN_POLL_S, _POLL_S = 10.0, 0.2, 5.0
_DEADLINE_S = 7 * 86400.0
_ENDED_WELL = ("succeeded", "refused")


@dataclass(frozen=True)
class TrainingSettings:
    """How a judge is trained in each round."""

    hyper_parameters: Mapping[str, Any]
    """In the words of OpenAI's API: n_epochs and batch_size."""
    nip: NipSettings
    """Everything else, for a server of nip."""


@dataclass(frozen=True)
class TrainedJudge:
    """The model of a round."""

    model: str
    job: str
    digest: str | None
    """Of its weights, where its server says it."""
    is_proved: bool
    """Its server has found that the saved weights are those that answer."""
    trained_tokens: int | None


def split_overrides(overrides: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split overrides into those of the judge's file and those of the training."""
    texts = [*overrides]
    training = [one for one in texts if one.strip().startswith(_PLACE)]
    return [one for one in texts if one not in training], training


def read_training(
    file: JudgeFile, overrides: Iterable[str], passes: int | None = None
) -> TrainingSettings:
    """Read the settings of the training: "training.learning_rate=2e-3" and so on.

    Raises SettingsError for a provider that trains nothing, and for unknown or unsent settings.
    """
    agent = file.agent
    service = None if agent is None else agent.provider.training
    if agent is None or service is None or not service.takes("supervised"):
        name = "this judge" if agent is None else f"model_provider {agent.model_provider}"
        file.refuse(("judge", "model_provider"), f"{name} trains no model by supervised examples")
    values: dict[str, Any] = {"n_epochs": passes or _PASSES}
    known_names = {*_WORDS, *NipSettings.model_fields}
    for override in overrides:
        name, _, text = override.strip().removeprefix(_PLACE).partition("=")
        if name not in known_names:
            raise SettingsError(
                f"--set {_PLACE}{name}: no such setting{did_you_mean(name, known_names)}; there "
                f"are {', '.join(_WORDS)} and those of a server's job"
            )
        if not service.takes_setting(name):
            raise SettingsError(f"--set {_PLACE}{name}: {agent.model_provider} does not take it")
        try:
            values[name] = _as_number(parse_yaml(text))
        except ReadError as error:
            raise SettingsError(f"--set {_PLACE}{name}: the value {error}") from None
    words = {name: values.pop(name) for name in _WORDS if name in values}
    if wrong := [name for name, value in words.items() if not _is_count(value)]:
        raise SettingsError(f"--set {_PLACE}{wrong[0]}: a whole number above 0 is needed")
    try:
        return TrainingSettings(words, NipSettings.model_validate(values))
    except ValidationError as error:
        first = error.errors()[0]
        raise SettingsError(f"--set {_PLACE}{first['loc'][0]}: {first['msg']}") from None


def _as_number(value: object) -> object:
    """Read 2e-3 as the number that it is, which YAML takes for a text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


class JudgeJobs:
    """Trains the models of one hardening."""

    def __init__(self, folder: Path, run: str, settings: TrainingSettings, seed: int) -> None:
        """`folder` keeps the records; `run` names the hardening at the training service."""
        self._folder, self._run, self._settings, self._seed = folder, run, settings, seed

    def describe(self, file: JudgeFile) -> dict[str, Any]:
        """Describe each job for people."""
        agent = file.agent
        assert agent is not None
        return {
            "provider": agent.model_provider,
            "model": agent.model_name,
            "method": "supervised",
            **self._settings.hyper_parameters,
            **self._settings.nip.model_dump(exclude_unset=True),
        }

    async def train(
        self, number: int, chats: Sequence[Mapping[str, Any]], seat: ModelSeat
    ) -> TrainedJudge:
        """Train the model of `seat` on the examples of a round, and prove that the new one answers.

        The job of an earlier process is gone on with; after one that failed this is a new attempt.
        Raises JobError for a job that gives no model, and StageError for a model without proof.
        """
        if problems := validate("supervised", enumerate(chats, start=1), min_examples=MIN_EXAMPLES):
            raise StageError(f"round {number}: {describe_problems(problems)}")
        provider, control = seat.agent.provider, _control(seat.endpoint)
        is_own = provider.is_lm_server  # its list never lags, and a look costs it nothing
        run = RunStore(open_store(str(self._folder)), "training")
        settle_s = 0.0 if is_own else _SETTLE_S
        async with open_ledger(run, provider, control, settle_s=settle_s) as (ledger, backend):
            attempt = _choose_attempt(ledger.record(number, GROUP))
            spec = self._make_spec(number, chats, seat.agent.model_name, attempt)
            record = await ledger.ensure_job(spec, to_jsonl(chats))
            if record.state != "terminal":
                record = await ledger.poll(
                    record,
                    interval_s=_OWN_POLL_S if is_own else _POLL_S,
                    deadline_s=_DEADLINE_S,
                )
            if not record.succeeded or record.model is None or record.id is None:
                raise JobError(
                    f"round {number}: job {record.id} ended as {record.outcome} ({record.reason}); "
                    f"mend the cause and run again; its record is {run.job(number, GROUP)}"
                )
            view = await _prove(backend, seat, record.model)
        return TrainedJudge(
            record.model, record.id, view.digest, view.is_proved, record.trained_tokens
        )

    def _make_spec(
        self, number: int, chats: Sequence[Mapping[str, Any]], parent: str, attempt: int
    ) -> JobSpec:
        return JobSpec(
            run=self._run,
            iteration=number,
            group=GROUP,
            dataset_digest=digest([*chats]),
            parent_model=parent,
            parent_model_digest=digest(parent),
            seed=derive_seed("a judge's job", self._seed, number),
            examples=len(chats),
            hyper_parameters=self._settings.hyper_parameters,
            nip=self._settings.nip,
            attempt=attempt,
            suffix=f"{self._run}-{number}",
        )


def _choose_attempt(record: JobRecord | None) -> int:
    """Give the attempt on record; after one that ended without a model the next one."""
    if record is None:
        return 0
    is_over = record.state == "terminal" and record.outcome not in _ENDED_WELL
    return record.attempt + 1 if is_over else record.attempt


def _control(endpoint: Endpoint) -> Endpoint:
    return Endpoint(endpoint.base_url, endpoint.api_key)


async def _prove(backend: Backend, seat: ModelSeat, model: str) -> ModelView:
    """See that a model answers, and where its server proves models, that its weights do."""
    dialect = find_dialect(seat.agent)
    message = {"role": "user", "content": "-"}
    body: dict[str, Any] = {"model": model, "messages": [message]}
    body[dialect.limit] = dialect.least_limit
    # Under its own name alone: a judge as it was might answer in its place.
    endpoint = replace(seat.endpoint, served_as=())
    try:
        # An adapter that is not loaded is loaded, and proved, when it is asked for.
        async with seat.client.answers(endpoint, body):
            pass
        view = await backend.bring_model(model)
    except RequestRefusedError as error:
        if "output limit was reached" not in str(error):
            raise StageError(f"{backend.address}: model {model} does not answer: {error}") from None
        view = ModelView()
    except BackendTrouble as error:
        raise StageError(f"{backend.address}: model {model} can't be had: {error}") from error
    if backend.proves and not view.is_proved:
        raise StageError(
            f"{backend.address}: model {model} is there, but it is not proved that it answers with "
            f"the weights that its job saved: {view.proof}"
        )
    return view
