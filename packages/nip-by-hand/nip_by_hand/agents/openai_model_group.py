"""A shared model group at a provider that speaks the OpenAI protocol: OpenAI, or our lm_server.

Jobs are submitted by the ledger alone, each once, and recorded in the run store: the run is
`settings.run_id`, else `run_name`; its iteration is the number of jobs that the group has had.
Give a run of `nip train` another name: the two record their jobs in the same places. A new model
plays once it is proved that it answers with the weights that were trained.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from nip_by_hand.agents.chat_types import DpoDatasetItem, SupervisedDatasetItem
from nip_by_hand.agents.errors import TrainingJobNotFoundClientError
from nip_by_hand.agents.experiment_settings import ExperimentSettings
from nip_by_hand.agents.group_jobs import GroupJobs
from nip_by_hand.agents.history import final_timesteps
from nip_by_hand.agents.language_model_client import (
    JobStatus,
    LanguageModelClient,
    TrainingJobInfo,
    job_status,
)
from nip_by_hand.agents.nested_array_dict import NestedArrayDict
from nip_by_hand.agents.openai_whole_agent import OpenAiWholeAgent, check_by_hand, endpoints_of
from nip_by_hand.agents.protocol_handler import CodeValidationProtocolHandler, ProtocolHandler
from nip_by_hand.agents.shared_model_group import PureTextSharedModelGroup
from nip_by_hand.agents.states import OpenAiSharedModelGroupState, PlainState
from nip_core.errors import JobError, ServerError, SettingsError
from nip_core.parameters import HyperParameters
from nip_core.proxies import http_client
from nip_core.redaction import redact
from nip_core.rollouts.client.completions import Endpoint
from nip_core.trainers.group_job import Parent

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.fine_tuning import FineTuningJob

Dataset = list[SupervisedDatasetItem] | list[DpoDatasetItem]
Method = Literal["supervised", "dpo"]

FROZEN_JOB = "frozen_job_id"
FEW_EXAMPLES_JOB = "insufficient_data_job_id"
DUMMY_JOB = "dummy_job_id"
DUMMY_MODEL = "dummy_model_name"
_NO_JOBS = (FROZEN_JOB, FEW_EXAMPLES_JOB, DUMMY_JOB)


class OpenAiSharedModelGroup(PureTextSharedModelGroup):
    """Agents that share a model of such a provider."""

    agent_wholes: dict[str, OpenAiWholeAgent]

    def __init__(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        protocol_handler: ProtocolHandler | CodeValidationProtocolHandler,
        agent_wholes: dict[str, OpenAiWholeAgent],
        group_name: str,
    ):
        """Open no connection. Raises SettingsError as the base class does, for an agent under
        another name, and for settings with a model of another run.
        """
        check_by_hand(hyper_params)
        for name, agent in agent_wholes.items():
            if name != agent.agent_name:
                raise SettingsError(f"agent_wholes: {name!r} is the agent {agent.agent_name!r}")
        super().__init__(
            hyper_params, settings, protocol_handler, agent_wholes.values(), group_name
        )
        self.agent_wholes = dict(agent_wholes)
        self._state = OpenAiSharedModelGroupState()
        self._client: tuple[asyncio.AbstractEventLoop | None, AsyncOpenAI] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Give the object's state without its client; a client can't be pickled and stays here."""
        return {**self.__dict__, "_client": None}

    # Its model and its provider.

    @property
    def base_model_name(self) -> str:
        """Name the model before any fine-tuning."""
        return next(iter(self.agent_wholes.values())).base_model_name

    @property
    def model_name(self) -> str:
        """The name of its present model: the base model, or a fine-tuned one."""
        return self._state.fine_tuned_model_name or self.base_model_name

    @property
    def training_client_type(self) -> Literal["openai", "lm_server"]:
        """Tell the kind of server for training: an API as OpenAI's, or our lm_server."""
        return "lm_server" if self.agent_params.provider.is_lm_server else "openai"

    @property
    def openai_client(self) -> "AsyncOpenAI":
        """Give the OpenAI SDK's client for the group's jobs, one for each event loop.

        Don't create jobs with it: that is the ledger's, which does it once.
        """
        from openai import AsyncOpenAI

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        # Its connections belong to the loop that opened them.
        if self._client is None or self._client[0] is not loop:
            control = self._control
            client = AsyncOpenAI(
                base_url=control.base_url,
                api_key=control.api_key,
                http_client=http_client(control.base_url),
            )
            self._client = (loop, client)
        return self._client[1]

    @property
    def language_model_client(self) -> LanguageModelClient:
        """The client of the group's lm_server. Raises SettingsError where it has none."""
        if self.training_client_type != "lm_server":
            raise SettingsError(
                f"group {self.group_name!r} has model_provider "
                f"{self.agent_params.model_provider}, so there is no lm_server of it"
            )
        return LanguageModelClient(self._control)

    @property
    def _control(self) -> Endpoint:
        return endpoints_of(self.hyper_params, self.group_name).control

    @property
    def _is_dummy(self) -> bool:
        return self.agent_params.use_dummy_api

    @property
    def _has_server(self) -> bool:
        return self.training_client_type == "lm_server" and not self._is_dummy

    # Getting ready.

    async def eval(self) -> None:
        """Bring the engine of the group's model up; returns once it answers.

        With a provider whose engines are its own affair there is nothing to do.
        """
        if self._has_server:
            await self.language_model_client.move_engine(self._engine, "wake")

    async def train(self) -> None:
        """Let the engine leave its device, if models are trained there.

        Whether they share one is the setting `lm_server.share_device`; auto: if the engine is on
        CUDA. The server brings it back when a job has a new model, and so does `eval`.
        """
        # 1. Learn whether the engine is where models are trained.
        if not self._has_server or self.hyper_params.lm_server.share_device == "no":
            return
        client = self.language_model_client
        shares = self.hyper_params.lm_server.share_device == "yes"
        if not shares:
            device = (await client.engine(self._engine)).status.device
            shares = device is not None and device.startswith("cuda")
        # 2. If so, it leaves.
        if shares:
            await client.move_engine(self._engine, "sleep")

    async def wait_for_ready(self, timeout: float = 300.0) -> None:
        """Return once the group's lm_server answers, and its version fits ours.

        With another provider there is nothing to wait for. Raises TimeoutError after `timeout`
        seconds, SettingsError for a version that does not fit.
        """
        if self._has_server:
            control = self._control

            def tell() -> None:
                self.settings.log.warning(
                    "group %s: waiting for the lm_server at %s; start it with `nip serve`",
                    self.group_name,
                    control.base_url,
                )

            await self.language_model_client.wait_for_ready(timeout, tell)

    @property
    def _engine(self) -> str:
        """The base model whose engine answers for the group's model."""
        is_base = self._state.fine_tuned_model_kind == "base"
        return self.model_name if is_base else self.base_model_name

    # Creating jobs.

    async def create_supervised_fine_tune_job(
        self,
        rollouts_per_agent: dict[str, NestedArrayDict],
        guess_replaced_rollouts: dict[str, NestedArrayDict] = {},  # noqa: B006 - never changed
        job_name: str | None = None,
    ) -> None:
        """Create a job to train the model on the agents' sides of these rollouts.

        See the base class. The keys of a rollout are those of `nip_by_hand.agents.batch`; where it
        has no "next" part, its last move is not in it. A frozen group, and one with fewer than ten
        examples, gets no job and keeps its model; the log says so.
        """
        self._check_names(rollouts_per_agent, guess_replaced_rollouts)
        dataset: list[SupervisedDatasetItem] = []
        for name, agent in self.agent_wholes.items():
            for rollouts, replaces in (
                (rollouts_per_agent.get(name), False),
                (guess_replaced_rollouts.get(name), True),
            ):
                if rollouts is not None:
                    if replaces and not agent.is_verifier:
                        raise ValueError(f"guess_replaced_rollouts: {name} is not the verifier")
                    examples = agent.build_fine_tune_dataset(
                        final_timesteps(rollouts), replace_verifier_guess_with_true_label=replaces
                    )
                    dataset += cast(list[SupervisedDatasetItem], examples)
        await self._make_fine_tune_api_call(dataset, "supervised", job_name)

    async def create_dpo_fine_tune_job(
        self,
        positive_examples_per_agent: dict[str, NestedArrayDict],
        negative_examples_per_agent: dict[str, NestedArrayDict],
        job_name: str | None = None,
    ) -> None:
        """Create a job to train the model to prefer one answer to another.

        See the base class. The chat that both answer is derived from the examples. A frozen group,
        and one with fewer than ten pairs, gets no job and keeps its model; the log says so.
        """
        self._check_names(positive_examples_per_agent, negative_examples_per_agent)
        if set(positive_examples_per_agent) != set(negative_examples_per_agent):
            raise ValueError("positive and negative examples are needed of the same agents")
        dataset: list[DpoDatasetItem] = []
        for name, agent in self.agent_wholes.items():
            if name in positive_examples_per_agent:
                dataset += agent.build_dpo_dataset(
                    positive_examples_per_agent[name], negative_examples_per_agent[name]
                )
        await self._make_fine_tune_api_call(dataset, "dpo", job_name)

    def _check_names(self, *per_agent: Mapping[str, Any]) -> None:
        unknown = sorted({name for values in per_agent for name in values} - set(self.agent_wholes))
        if unknown:
            raise ValueError(
                f"{unknown} are not in group {self.group_name!r}, which is "
                f"{', '.join(self.agent_wholes)}"
            )

    async def _make_fine_tune_api_call(
        self,
        fine_tune_dataset: Dataset,
        method: Method,
        job_name: str | None = None,
    ) -> None:
        """Create the job at the group's provider, or none where there can't be one.

        Raises ValueError for another method.
        """
        # 1. A model that plays is done with its job: the next one begins.
        _check_method(method)
        if self._state.has_switched:
            self._change(
                fine_tune_job_id=None, has_switched=False, iteration=self._state.iteration + 1
            )
        # 2. A frozen group, or one without a model, needs no job.
        if not self.is_trainable or self._is_dummy:
            no_job = FROZEN_JOB if not self.is_trainable else DUMMY_JOB
            self.settings.log.info("group %s: no job (%s)", self.group_name, no_job)
            self._change(fine_tune_job_id=no_job)
            return
        # 3. Start from the base model or from the present one, at whoever trains it.
        scratch = self.agent_params.fine_tune_from_scratch
        model_name = self.base_model_name if scratch else self.model_name
        if self.training_client_type == "lm_server":
            create = self._make_fine_tune_api_call_lm_server
        else:
            create = self._make_fine_tune_api_call_openai
        await create(fine_tune_dataset, method, model_name, job_name)

    async def _make_fine_tune_api_call_openai(
        self,
        fine_tune_dataset: Dataset,
        method: Method,
        model_name: str,
        job_name: str | None = None,
    ) -> None:
        """Create the job, starting from the model of this name.

        An lm_server is sent LoRA's settings and the optimizer's as well; of OpenAI's API only
        those that it has words for are asked.
        """
        _check_method(method)
        state, is_base = self._state, model_name == self.base_model_name
        parent = Parent(
            model=model_name,
            digest=None if is_base else state.fine_tuned_model_digest,
            is_base=is_base,
            can_stack=state.fine_tuned_model_kind != "base",
        )
        record = await self._jobs.submit(
            fine_tune_dataset, method, parent, state.iteration, job_name
        )
        if record.outcome == "skipped":
            self.settings.log.warning(
                "group %s: no job, the model stays: %s", self.group_name, record.reason
            )
        self._change(fine_tune_job_id=record.id or FEW_EXAMPLES_JOB)

    _make_fine_tune_api_call_lm_server = _make_fine_tune_api_call_openai

    @property
    def _jobs(self) -> GroupJobs:
        run_name = self.settings.run_id or self.hyper_params.run_name
        endpoints = endpoints_of(self.hyper_params, self.group_name)
        return GroupJobs(self.hyper_params, self.group_name, run_name, endpoints)

    # Following jobs.

    async def _get_lm_server_fine_tune_job(self) -> TrainingJobInfo:
        """The group's job as its lm_server reports it.

        Raises TrainingJobNotFoundClientError if there is none, or the server does not know it.
        """
        return await self.language_model_client.get_training_job(self._job_id)

    async def _get_openai_fine_tune_job(self) -> "FineTuningJob":
        """The group's job as the OpenAI SDK has it. Raises as the method for an lm_server does."""
        from openai import NotFoundError, OpenAIError

        job_id, key = self._job_id, self._control.api_key
        try:
            return await self.openai_client.fine_tuning.jobs.retrieve(job_id)
        except NotFoundError as error:
            problem: Exception = TrainingJobNotFoundClientError(
                redact(f"job {job_id}: {error}", key)
            )
        except OpenAIError as error:
            problem = ServerError(redact(f"job {job_id}: {error}", key))
        raise problem  # apart from the SDK's error, which holds the server's answer as it came

    @property
    def _job_id(self) -> str:
        if self._state.fine_tune_job_id is None:
            raise TrainingJobNotFoundClientError(f"group {self.group_name!r} has no fine-tune job")
        return self._state.fine_tune_job_id

    async def _status_and_error(self) -> tuple[JobStatus, str | None]:
        if not self.is_trainable or self._state.fine_tune_job_id in _NO_JOBS:
            return "succeeded", None
        try:
            if self.training_client_type == "lm_server":
                info = await self._get_lm_server_fine_tune_job()
                return info.status, info.error
            job = await self._get_openai_fine_tune_job()
        except TrainingJobNotFoundClientError as error:
            return "not_found", str(error)
        words = [job.error.code, job.error.param, job.error.message] if job.error else []
        message = redact(": ".join(word for word in words if word), self._control.api_key)
        return job_status(job.status), message or None

    async def get_fine_tune_job_status(self) -> JobStatus:
        """Tell how far the group's job is.

        "not_found" if there is none yet, or the server does not know it; "succeeded" for a step
        that needed no job (a frozen group, too few examples).
        """
        return (await self._status_and_error())[0]

    async def get_fine_tune_job_error_repr(self) -> str:
        """Tell why the job ended without a model, in the server's words."""
        status, error = await self._status_and_error()
        return error or f"no error is known; the job is {status}"

    async def switch_to_next_model(self) -> None:
        """Play with the job's model, once it is proved to answer.

        Without a job of its own (frozen, too few examples) the group keeps its model, and the log
        says so; done again it changes nothing. Raises JobError for a job that has not succeeded,
        StageError for a model that does not answer with the weights that were trained.
        """
        # 1. A finished job needs no more; a step without a job keeps the model.
        job_id, state = self._job_id, self._state
        if state.has_switched:
            return
        if job_id in _NO_JOBS:
            is_dummy = job_id == DUMMY_JOB
            name = DUMMY_MODEL if is_dummy else state.fine_tuned_model_name
            self._change(fine_tuned_model_name=name, has_switched=job_id != FROZEN_JOB)
            verb = "plays with" if is_dummy else "keeps"  # the name that answers have from here on
            self.settings.log.warning(
                "group %s: %s %s (%s)", self.group_name, verb, self.model_name, job_id
            )
            return
        # 2. Only a job that succeeded has made one.
        status, error = await self._status_and_error()
        if status != "succeeded":
            raise JobError(
                f"job {job_id} of group {self.group_name!r} is {status}"
                f"{f' ({error})' if error else ''}; a model comes only of one that succeeded"
            )
        # 3. Prove that it answers with its weights; then play with it.
        model = await self._jobs.made_model(job_id, state.iteration)
        proved_model = await self._jobs.prove_model(model, self.base_model_name, job_id)
        self.settings.log.info("group %s: plays with %s", self.group_name, model)
        self._change(
            fine_tuned_model_name=model,
            fine_tuned_model_digest=proved_model.digest,
            fine_tuned_model_kind=proved_model.kind,
            has_switched=True,
        )

    # State.

    def get_state(self) -> OpenAiSharedModelGroupState:
        """The state for a checkpoint: the job, the model, the number of jobs so far."""
        return self._state

    def set_state(self, checkpoint: OpenAiSharedModelGroupState | PlainState) -> None:
        """Restore a state of `get_state` or `get_state_dict`. Raises ValueError for other keys."""
        if not isinstance(checkpoint, OpenAiSharedModelGroupState):
            checkpoint = OpenAiSharedModelGroupState.from_dict(checkpoint)
        self._state = checkpoint

    def _change(self, **changes: Any) -> None:
        self._state = OpenAiSharedModelGroupState(**{**self._state.to_dict(), **changes})


def _check_method(method: str) -> None:
    if method not in get_args(Method):
        raise ValueError(f"method: 'supervised' or 'dpo' is needed (got {method!r})")
