"""What all stages of a run share in one process, opened and closed as one.

prepare        everything that can be checked without a server: problems, prompts, keys, the
               model's path, the run on record, disk space
open_session   that, then the lease, the server and its model, the chat template and the context
               length; only then is the run created
contents_of    digests of the files that the settings name: a run name stands for them too
"""

import asyncio
import contextlib
import hashlib
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import nip_core
from nip_core.agents.chat_client import ChatClient, Endpoint
from nip_core.agents.random_agent import RANDOM_MODEL
from nip_core.agents.render import Game
from nip_core.errors import SettingsError, StoreError
from nip_core.hashing import digest
from nip_core.lm_server.spec import EngineSpec, ServerSpec
from nip_core.models import resolve_model
from nip_core.parameters import DATA_NEUTRAL, HyperParameters, RandomAgentParameters
from nip_core.rollouts.engine import Player
from nip_core.rollouts.plan import SPLITS, shuffle_labels
from nip_core.rollouts.progress import Progress
from nip_core.run_store.lease import Lease, acquire
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.scenarios.code_validation.datasets import Problem, check_splits, load_problems
from nip_core.stages.checks import check_prompts, check_version
from nip_core.stages.estimate import Estimate, estimate_run
from nip_core.stages.own_server import OwnServer
from nip_core.stages.providers import remote_endpoints, served_name

T = TypeVar("T")


@dataclass(frozen=True)
class Session:
    """A run that this process holds. Made by `open_session`."""

    parameters: HyperParameters
    game: Game
    run: RunStore
    lease: Lease
    problems: Mapping[str, list[Problem]]
    endpoints: Mapping[str, Endpoint]  # by provider; the run's own server is not among them
    client: ChatClient
    progress: Progress
    estimate: Estimate
    server: OwnServer | None = None
    retry_failed_jobs: bool = False  # a failed job on record is submitted anew

    def endpoint(self, group: str) -> Endpoint:
        """Where the group's model is asked and trained."""
        provider = self.parameters.group_parameters(group).model_provider
        if provider == "SelfHosted" and self.server is not None:
            return self.server.endpoint
        return self.endpoints[provider]

    async def with_server(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work`; if the run's own server dies meanwhile, raise ServerError at once.

        A server that is found dead is started again first, so that repeating a stage helps.
        """
        return await (work() if self.server is None else self.server.during(work))

    def base_model(self, group: str) -> str:
        """The name under which the group's base model is served."""
        agent = self.parameters.group_parameters(group)
        own = agent.model_provider == "SelfHosted" and self.parameters.lm_server.url is None
        return served_name(agent.model_name) if own else agent.model_name

    def players(self, models: Mapping[str, str]) -> dict[str, Player]:
        """Every agent with the model of its group; `models` names it by group."""
        players = {
            agent: Player(agent, RANDOM_MODEL, None, settings)
            for agent, settings in self.parameters.agents.items()
            if isinstance(settings, RandomAgentParameters)
        }
        for group, agents in self.parameters.groups.items():
            for agent in agents:
                settings = self.parameters.model_agents[agent]
                players[agent] = Player(agent, models[group], self.endpoint(group), settings)
        return players


def load_all_problems(parameters: HyperParameters) -> dict[str, list[Problem]]:
    """The problems of every split, checked. Raises DatasetError."""
    options, scenario = parameters.dataset_options, parameters.code_validation
    sizes = {
        "train": options.max_train_size,
        "validation": options.max_validation_size,
        "test": options.max_test_size,
    }
    problems = {}
    for split in SPLITS:
        played = split in ("train", parameters.test_dataset_split)
        problems[split] = load_problems(
            parameters.dataset,
            split,
            difficulty=scenario.apps_difficulty,
            exclude_flagged=scenario.apps_exclude_flagged,
            max_size=sizes[split],
            shuffle_seed=options.reduce_shuffle_seed,
            # A split that nobody plays may be as unbalanced as it likes.
            make_balanced=options.make_balanced and played,
        )
    check_splits(problems)
    if options.shuffle_train_labels:
        problems["train"] = shuffle_labels(problems["train"], parameters.seed)
    # Tests may be held on the validation split while a method is being developed.
    problems["test"] = problems[parameters.test_dataset_split]
    return problems


@dataclass(frozen=True)
class Prepared:
    """What is known of a run before anything is started."""

    game: Game
    run: RunStore
    problems: Mapping[str, list[Problem]]
    endpoints: Mapping[str, Endpoint]
    estimate: Estimate
    contents: Mapping[str, Any]


def prepare(parameters: HyperParameters, environment: Mapping[str, str] = os.environ) -> Prepared:
    """Check everything that takes no server: prompts, store, problems, keys, disk space, model.

    Raises SettingsError, DatasetError, StoreError or RunConflictError; nothing was written but
    the directory of the run store.
    """
    game = Game(parameters)
    problems = load_all_problems(parameters)
    endpoints = remote_endpoints(parameters, environment)
    _check_model(parameters)
    estimate = estimate_run(game, problems)
    replies = parameters.lm_server.replies
    if replies is not None and not Path(replies).is_file():
        raise SettingsError(f"lm_server.replies: there is no file {replies}")
    store = open_store(parameters.run_store)
    run = RunStore(store, parameters.run_name)
    contents = contents_of(parameters, problems, endpoints)
    prepared = Prepared(game, run, problems, endpoints, estimate, contents)
    run.check_same(**identity(prepared, parameters))
    free = store.free_bytes()
    if free is not None and free < estimate.disk_bytes:
        raise StoreError(
            f"{store.url}: the run can take {estimate.disk_bytes / 1e6:.0f} MB, only "
            f"{free / 1e6:.0f} MB are free; free space or choose another run_store"
        )
    return prepared


def _check_model(parameters: HyperParameters) -> None:
    """A model path of the run's own server must be there; names are the server's to resolve."""
    if parameters.lm_server.engine == "deterministic" or parameters.lm_server.url is not None:
        return
    for name, agent in parameters.model_agents.items():
        path = Path(resolve_model(agent.model_name)).expanduser()
        looks_local = agent.model_name.startswith((".", "/", "~"))
        if agent.model_provider == "SelfHosted" and looks_local and not path.is_dir():
            raise SettingsError(
                f"agents.{name}.model_name: there is no directory {agent.model_name}; give the "
                'path of a model, a Hugging Face name, or "tiny"'
            )


@contextlib.asynccontextmanager
async def open_session(
    parameters: HyperParameters,
    *,
    environment: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    retry_failed_jobs: bool = False,
) -> AsyncIterator[Session]:
    """Hold the run: checked, leased, its server up. Leaving gives everything back.

    Raises SettingsError, DatasetError, StoreError, RunConflictError, LeaseError or ServerError;
    nothing has been spent then.
    """
    prepared = prepare(parameters, environment)
    run = prepared.run
    async with contextlib.AsyncExitStack() as stack:
        lease = stack.enter_context(await asyncio.to_thread(acquire, run.store, run.root))
        server = None
        providers = {agent.model_provider for agent in parameters.model_agents.values()}
        if "SelfHosted" in providers and "SelfHosted" not in prepared.endpoints:
            server = OwnServer(
                server_spec(parameters),
                server_directory(run),
                timeout_s=parameters.lm_server.start_timeout_s,
                environment=environment,
            )
            stack.callback(server.stop)
            await server.ensure()
        client = await stack.enter_async_context(
            ChatClient(
                concurrency=parameters.rollouts.concurrency,
                timeout_s=parameters.rollouts.request_timeout_s,
                retries=parameters.rollouts.transport_retries,
            )
        )
        session = Session(
            parameters=parameters,
            game=prepared.game,
            run=run,
            lease=lease,
            problems=prepared.problems,
            endpoints=prepared.endpoints,
            client=client,
            progress=progress or Progress(),
            estimate=prepared.estimate,
            server=server,
            retry_failed_jobs=retry_failed_jobs,
        )
        await check_version(session)
        await check_prompts(session)
        run.create_or_open(**identity(prepared, parameters), now=datetime.now(UTC), lease=lease)
        yield session


def identity(prepared: "Prepared", parameters: HyperParameters) -> dict[str, Any]:
    """What a run's name stands for: settings, and the content of the files they name."""
    return {
        "parameters": parameters.to_dict(),
        "contents": prepared.contents,
        "code_version": code_version(),
        "seed": parameters.seed,
        "data_neutral": DATA_NEUTRAL,
    }


def contents_of(
    parameters: HyperParameters,
    problems: Mapping[str, list[Problem]],
    endpoints: Mapping[str, Endpoint],
) -> dict[str, Any]:
    """Digests of everything outside the settings that decides the data.

    Problems and templates whole; a replies file whole; of a model directory names, sizes and the
    first megabyte of each file, so that large weights are not read; addresses of providers.
    """
    contents: dict[str, Any] = {
        "problems": {
            split: digest([[p.id, p.question, p.solution, p.y] for p in chosen])
            for split, chosen in problems.items()
        },
        "templates": {},
        "addresses": {provider: e.base_url for provider, e in sorted(endpoints.items())},
        "models": {},
        "replies": None,
    }
    for name, agent in parameters.model_agents.items():
        if agent.system_prompt_template_path is not None:
            text = Path(agent.system_prompt_template_path).read_text(encoding="utf-8")
            contents["templates"][name] = digest(text)
        path = Path(resolve_model(agent.model_name)).expanduser()
        if agent.model_provider == "SelfHosted" and path.is_dir():
            contents["models"][agent.model_name] = _directory_digest(path)
    if parameters.lm_server.replies is not None:
        contents["replies"] = digest(
            Path(parameters.lm_server.replies).read_text(encoding="utf-8", errors="replace")
        )
    return contents


def _directory_digest(directory: Path) -> str:
    facts = []
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        with file.open("rb") as opened:
            head = hashlib.sha256(opened.read(1 << 20)).hexdigest()
        facts.append([str(file.relative_to(directory)), file.stat().st_size, head])
    return digest(facts)


@lru_cache(maxsize=1)
def code_version() -> str:
    """The version of nip, with the commit where it runs from a checkout."""
    root = Path(nip_core.__file__).parent.parent
    if not (root / ".git").exists():
        return nip_core.__version__
    try:
        asked = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):  # no git here
        return nip_core.__version__
    commit = asked.stdout.strip()
    return f"{nip_core.__version__}+{commit}" if commit else nip_core.__version__


def server_spec(parameters: HyperParameters) -> ServerSpec:
    """How the run's own server is configured."""
    settings = parameters.lm_server
    names = dict.fromkeys(
        a.model_name for a in parameters.model_agents.values() if a.model_provider == "SelfHosted"
    )
    first, *more = (
        EngineSpec(
            engine=settings.engine,
            model=name if settings.engine == "deterministic" else resolve_model(name),
            served_model_name=served_name(name),
            replies=settings.replies,
            options=settings.options,
            training_device=settings.training_device,
            share_device=settings.share_device,
        )
        for name in names
    )
    return ServerSpec(**vars(first), more_engines=tuple(more))


def server_directory(run: RunStore) -> Path:
    """Where the run's own server keeps its state. Raises SettingsError without a local disk."""
    local = run.store.local_path(f"{run.root}/lm_server")
    if local is None:
        raise SettingsError(
            f"lm_server.url: the run's own server needs a local disk, run_store is "
            f"{run.store.url}; name a server of yours"
        )
    return local
