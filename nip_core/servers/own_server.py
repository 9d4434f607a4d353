"""The lm_server of a run: started with the session, watched, started again when it died."""

import asyncio
import contextlib
import hashlib
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from nip_base.machine.devices import compile_caches, has_cuda
from nip_base.spec import EngineSpec, ServerSpec
from nip_core.errors import ServerError, SettingsError
from nip_core.models import resolve_model
from nip_core.parameters import HyperParameters, PureTextAgentParameters
from nip_core.parameters.derived.hosting import find_host, list_loaded
from nip_core.parameters.derived.model_names import base_name
from nip_core.progress.board import Progress
from nip_core.proxies import restore_proxies
from nip_core.rollouts.client.completions import Endpoint
from nip_core.run_store.run import RunStore
from nip_core.servers.engine_sizes import check_ranks, choose_vllm_sizes
from nip_lm_server.client import OwnerError, ServerHandle, is_running, start_or_attach, stop

T = TypeVar("T")
# Looking costs one question to the system, and a stage learns of a death before its calls have been
# repeated much.
_LOOK_EVERY_S = 0.25


def make_server_spec(parameters: HyperParameters) -> ServerSpec | None:
    """The configuration of the run's own server; None if no group uses one.

    One engine for each base model, and a deterministic one for each that `use_dummy_api` replaces.
    """
    engines = {
        base_name(parameters, agent): _engine(parameters, agent)
        for agent in parameters.model_agents.values()
        if find_host(parameters, agent).is_launched
    }
    # All models are on other servers, or all agents are random.
    if not engines:
        return None
    first, *more = engines.values()
    return ServerSpec(**vars(first), more_engines=tuple(more))


def _engine(parameters: HyperParameters, agent: PureTextAgentParameters) -> EngineSpec:
    settings, name = parameters.lm_server, base_name(parameters, agent)
    # Another engine of the same server answers for it, for all settings of the engine of real
    # models; it has no weights, so it needs no device.
    if agent.use_dummy_api:
        return EngineSpec(
            engine="deterministic",
            model=name,
            served_model_name=name,
            replies=settings.replies,
            training_device="cpu",
            share_device="no",
        )
    # Without weights there are none that could be quantized.
    has_weights = settings.capabilities.has_weights
    quantized = agent.quantization != "none" and has_weights
    return EngineSpec(
        engine=settings.engine,
        # Without weights any name will do, so none is looked for.
        model=resolve_model(agent.model_name) if has_weights else agent.model_name,
        served_model_name=name,
        replies=settings.replies,
        options={
            # A user's option counts before a reckoned one. Quantization is the agent's alone,
            # since its training goes by it too.
            **(choose_vllm_sizes(parameters, name) if settings.engine == "vllm" else {}),
            **settings.options,
            **({"quantization": agent.quantization} if quantized else {}),
        },
        training_device=settings.training_device,
        share_device=settings.share_device,
        bases_at_once=_bases_at_once(parameters, name),
    )


def _bases_at_once(parameters: HyperParameters, base: str) -> int:
    """Count the base models needed beside each other, if every weight is trained."""
    groups = [parameters.group_parameters(group) for group in parameters.groups]
    playing = [agent for agent in groups if base_name(parameters, agent) == base]
    trained_agents = [agent for agent in playing if not agent.use_lora and not agent.freeze_agent]
    # One group without a gate needs no second place: only one of its models plays at a time.
    several = len(playing) > 1 or parameters.promotion.enabled
    if (
        not several
        or not trained_agents
        or not find_host(parameters, trained_agents[0]).serves_several_bases
    ):
        return 1
    # The configured one, and of each group the model that plays and the one that is to follow.
    return 1 + 2 * len(trained_agents)


def check_server(parameters: HyperParameters, environment: Mapping[str, str]) -> None:
    """Refuse settings that the run's own server could not follow. Raises SettingsError.

    Here, before it is started: the server would say so after seconds or minutes, some of it in the
    first training alone, and of parking nothing at all. That would stop the server, and with it the
    job for which the run is to come back.
    """
    settings = parameters.lm_server
    if settings.replies is not None and not os.path.isfile(settings.replies):
        raise SettingsError(f"lm_server.replies: there is no file {settings.replies}")
    check_ranks(parameters)
    _check_trains(parameters)
    parked = parameters.fine_tuning.park_after_s
    for group in parameters.trainable_groups if parked is not None else ():
        if find_host(parameters, parameters.group_parameters(group)).is_launched:
            raise SettingsError(
                f"fine_tuning.park_after_s: group {group} trains on the run's own server, which "
                f"stops when the run lets go (got {parked:g}); start one with `nip serve` and name "
                "it in lm_server.url, or leave the setting out"
            )
    # An agent without a model, or on another server, has none of the troubles below.
    for name, agent in list_loaded(parameters).items():
        # Quantized weights are on CUDA alone: fp8 while a model plays (it trains with its weights
        # as they are), bitsandbytes while it trains, too. An adapter that is stacked has the one
        # below merged into the weights, which takes whole ones.
        if agent.quantization == "none":
            continue
        reason = None
        if settings.training_device == "cpu" or not has_cuda(environment):
            reason = "it needs a CUDA device, to play and to train"
        elif agent.stack_lora_adapters and agent.quantization == "bitsandbytes":
            reason = "an adapter can't be stacked on another over quantized weights"
        if reason is not None:
            raise SettingsError(
                f"agents.{name}.quantization: {agent.quantization!r} can't be used here: {reason}"
            )


def _check_trains(parameters: HyperParameters) -> None:
    """Refuse to train over an engine that loads no adapters."""
    for group in parameters.trainable_groups:
        host = find_host(parameters, parameters.group_parameters(group))
        if host.is_launched and not host.takes_adapters:
            raise SettingsError(
                f"lm_server.engine: {parameters.lm_server.engine} loads no adapters, so group "
                f"{group} can't be trained over it; set freeze_agent: true for its agents, or "
                "take an engine that trains (embedded, vllm, or capabilities with trains=True)"
            )


def find_server_directory(run: RunStore, environment: Mapping[str, str] = os.environ) -> Path:
    """The directory of the own server's state: in the run, or in a cache on this machine's disk.

    The cache is ``$NIP_CACHE_DIR``, else ``nip`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    # A database and checkpoints need a disk. In the run itself they move, and are copied, with it.
    local = run.store.local_path(f"{run.root}/lm_server")
    if local is not None:
        return local
    # Runs of one name in two buckets have two directories.
    place_digest = hashlib.sha256(f"{run.store.url}/{run.root}".encode()).hexdigest()[:16]
    return _cache(environment) / "runs" / f"{run.name}-{place_digest}" / "lm_server"


def _cache(environment: Mapping[str, str]) -> Path:
    """Find this machine's cache, where users of other programs would look for it."""
    cache = environment.get("NIP_CACHE_DIR")
    if cache is None:
        cache = f"{environment.get('XDG_CACHE_HOME') or '~/.cache'}/nip"
    return Path(cache).expanduser().absolute()


class OwnServer:
    """One server in one state directory. All methods are for one event loop."""

    def __init__(
        self,
        spec: ServerSpec,
        directory: Path,
        *,
        timeout_s: float,
        environment: Mapping[str, str],
        progress: Progress | None = None,
    ) -> None:
        """`timeout_s`: the longest wait for it to answer. Nothing is started yet."""
        self._progress = progress or Progress()
        self._spec, self.directory = spec, directory
        # Code compiled for one run serves the next, which has a state directory of its own.
        compiled = compile_caches(_cache(environment) / "compiled")
        self._timeout_s, self._environment = timeout_s, {**compiled, **restore_proxies(environment)}
        self._handle: ServerHandle | None = None
        # Stages ask for it side by side; one of them starts it, and the others wait for that one.
        self._starting = asyncio.Lock()

    @property
    def endpoint(self) -> Endpoint:
        """Return where it answers now; after a restart the port is another one."""
        assert self._handle is not None, "call ensure() first"
        return Endpoint(f"{self._handle.url}/v1", self._handle.api_key, joins=True)

    async def ensure(self) -> None:
        """Start the server unless it runs.

        Raises SettingsError with the server's own word if it refuses the models it was asked to
        run, ServerError if it does not come up.
        """
        async with self._starting:
            # Its process is enough: the calls find one that hangs, by their timeouts, which fit the
            # longest answers, and no start would end it.
            if self._handle is not None and is_running(self._handle):
                return
            # Counted, so that a reader of the progress sees why the run paused.
            if self._handle is not None:
                self._progress.count_retry("the model server has ended by itself")
            # The leftovers of a dead one, its card and the pipe to it, go first.
            self.stop()
            engines = self._spec.engines()
            models = " and ".join(Path(engine.model).name for engine in engines)
            # The engine without models has none that could be named.
            engine_words = engines[0].engine + (
                f" with {models}" if models != engines[0].engine else ""
            )
            with self._progress.starting(f"the model server ({engine_words})"):
                await self._start()

    async def _start(self) -> None:
        # 1. In a thread, as it waits for a process; told by an event when no caller waits for it.
        given_up = threading.Event()
        starting = asyncio.ensure_future(
            asyncio.to_thread(
                start_or_attach,
                self._spec,
                self.directory,
                timeout_s=self._timeout_s,
                env=self._environment,
                given_up=given_up.is_set,
            )
        )
        try:
            self._handle = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # 2. One that came up all the same is ended by `stop`, so its handle is kept. One that
            #    did not leaves nothing to be ended, and no caller waits for its reason.
            given_up.set()
            with contextlib.suppress(OwnerError):
                self._handle = await starting
            raise
        except OwnerError as error:
            # An error that does not pass by itself is a matter of settings, which stops the run. A
            # ServerError would have the stage tried again. Without the cause: the message has it.
            if error.reason is not None:
                raise SettingsError(f"lm_server: {error.reason}") from None
            raise ServerError(f"lm_server: {error}") from None

    async def during(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work` while the server runs. Raises ServerError as soon as it has died."""
        await self.ensure()
        # Beside each other, because the calls of `work` can't tell a dead server from a busy one:
        # they would go on repeating.
        doing = asyncio.ensure_future(work())
        watching = asyncio.ensure_future(self._until_dead())
        try:
            await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
            # Work that is done counts, also if the server has died in the same moment.
            if not doing.done():
                raise ServerError(
                    f"the run's lm_server ended by itself; its log is {self.directory / 'logs'}. "
                    "It is started again when the stage is"
                )
            return doing.result()
        finally:
            # Waited for as well: nothing of the stage goes on while the stage is tried again.
            for task in (doing, watching):
                task.cancel()
            await asyncio.gather(doing, watching, return_exceptions=True)

    def stop(self) -> None:
        """End the server if this process started it."""
        if self._handle is not None:
            stop(self._handle)
            self._handle = None

    async def _until_dead(self) -> None:
        # A process that ends sets no event.
        while self._handle is not None and is_running(self._handle):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_EVERY_S)
