"""What all stages of a run share in one process, opened and closed as one.

Opening checks everything that can be wrong before anything is spent, in this order: settings
against the store, problems, prompts, keys, disk space, the lease, the server and its model, the
chat template and the context length. Only then is the run created.
"""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import aiohttp

import nip_core
from nip_core.agents.chat_client import ChatClient, Endpoint
from nip_core.agents.render import Game, Situation, Turn
from nip_core.errors import ServerError, SettingsError, StoreError
from nip_core.lm_server.owner import OwnerError, ServerHandle, start_or_attach, stop
from nip_core.lm_server.spec import ServerSpec
from nip_core.models import resolve_model
from nip_core.parameters import DATA_NEUTRAL, HyperParameters
from nip_core.protocols import Move
from nip_core.rollouts.engine import Player
from nip_core.rollouts.plan import SPLITS, shuffle_labels
from nip_core.rollouts.progress import Progress
from nip_core.run_store.lease import Lease, acquire
from nip_core.run_store.run import RunRecord, RunStore
from nip_core.run_store.store import open_store
from nip_core.scenarios.code_validation.datasets import Problem, check_splits, load_problems
from nip_core.stages.estimate import Estimate, estimate_run
from nip_core.stages.providers import remote_endpoints, served_name


@dataclass(frozen=True)
class Session:
    """A run that this process holds. Made by `open_session`."""

    parameters: HyperParameters
    game: Game
    run: RunStore
    record: RunRecord
    lease: Lease
    problems: Mapping[str, list[Problem]]
    endpoints: Mapping[str, Endpoint]  # by provider
    client: ChatClient
    progress: Progress
    estimate: Estimate
    server: ServerHandle | None = None  # the run's own lm_server
    retry_failed_jobs: bool = False  # a failed job on record is submitted anew

    def endpoint(self, group: str) -> Endpoint:
        """Where the group's model is asked and trained."""
        return self.endpoints[self.parameters.group_parameters(group).model_provider]

    def base_model(self, group: str) -> str:
        """The name under which the group's base model is served."""
        agent = self.parameters.group_parameters(group)
        own = agent.model_provider == "SelfHosted" and self.parameters.lm_server.url is None
        return served_name(agent.model_name) if own else agent.model_name

    def players(self, models: Mapping[str, str]) -> dict[str, Player]:
        """Every agent with the model of its group; `models` names it by group."""
        return {
            agent: Player(agent, models[group], self.endpoint(group), self.parameters.agents[agent])
            for group, agents in self.parameters.groups.items()
            for agent in agents
        }


def load_all_problems(parameters: HyperParameters) -> dict[str, list[Problem]]:
    """The problems of every split, checked. Raises DatasetError."""
    options, scenario = parameters.dataset_options, parameters.code_validation
    sizes = {
        "train": options.max_train_size,
        "validation": options.max_validation_size,
        "test": options.max_test_size,
    }
    problems = {
        split: load_problems(
            parameters.dataset,
            split,
            difficulty=scenario.apps_difficulty,
            exclude_flagged=scenario.apps_exclude_flagged,
            max_size=sizes[split],
            shuffle_seed=options.reduce_shuffle_seed,
            make_balanced=options.make_balanced,
        )
        for split in SPLITS
    }
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
    store = open_store(parameters.run_store)
    run = RunStore(store, parameters.run_name)
    if store.exists(f"{run.root}/run.json"):
        _open_run(run, parameters)
    free = store.free_bytes()
    if free is not None and free < estimate.disk_bytes:
        raise StoreError(
            f"{store.url}: the run can take {estimate.disk_bytes / 1e6:.0f} MB, only "
            f"{free / 1e6:.0f} MB are free; free space or choose another run_store"
        )
    return Prepared(game, run, problems, endpoints, estimate)


def _check_model(parameters: HyperParameters) -> None:
    """A model path of the run's own server must be there; names are the server's to resolve."""
    if parameters.lm_server.engine != "embedded" or parameters.lm_server.url is not None:
        return
    for name, agent in parameters.agents.items():
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
    run, endpoints = prepared.run, dict(prepared.endpoints)
    async with contextlib.AsyncExitStack() as stack:
        lease = stack.enter_context(await asyncio.to_thread(acquire, run.store, run.root))
        server = None
        if (
            any(a.model_provider == "SelfHosted" for a in parameters.agents.values())
            and "SelfHosted" not in endpoints
        ):
            server = await _own_server(parameters, run, environment)
            if server.owned:
                stack.callback(stop, server)
            endpoints["SelfHosted"] = Endpoint(f"{server.url}/v1", server.api_key)
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
            record=RunRecord(run.name, {}, "", parameters.seed, "", False),
            lease=lease,
            problems=prepared.problems,
            endpoints=endpoints,
            client=client,
            progress=progress or Progress(),
            estimate=prepared.estimate,
            server=server,
            retry_failed_jobs=retry_failed_jobs,
        )
        await check_prompts(session)
        record = _open_run(run, parameters)
        yield replace(session, record=record)


def _open_run(run: RunStore, parameters: HyperParameters) -> RunRecord:
    return run.create_or_open(
        parameters.to_dict(),
        code_version=code_version(),
        seed=parameters.seed,
        data_neutral=DATA_NEUTRAL,
        now=datetime.now(UTC),
    )


@lru_cache(maxsize=1)
def code_version() -> str:
    """The version of nip, with the commit where it runs from a checkout."""
    root = Path(nip_core.__file__).parent.parent
    if not (root / ".git").exists():
        return nip_core.__version__
    asked = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    commit = asked.stdout.strip()
    return f"{nip_core.__version__}+{commit}" if commit else nip_core.__version__


def server_spec(parameters: HyperParameters) -> ServerSpec:
    """How the run's own server is configured."""
    name = next(
        a.model_name for a in parameters.agents.values() if a.model_provider == "SelfHosted"
    )
    return ServerSpec(
        engine=parameters.lm_server.engine,
        model=resolve_model(name) if parameters.lm_server.engine == "embedded" else name,
        served_model_name=served_name(name),
        replies=parameters.lm_server.replies,
    )


def server_directory(run: RunStore) -> Path:
    """Where the run's own server keeps its state. Raises SettingsError without a local disk."""
    local = run.store.local_path(f"{run.root}/lm_server")
    if local is None:
        raise SettingsError(
            f"lm_server.url: the run's own server needs a local disk, run_store is "
            f"{run.store.url}; name a server of yours"
        )
    return local


async def _own_server(
    parameters: HyperParameters, run: RunStore, environment: Mapping[str, str]
) -> ServerHandle:
    try:
        return await asyncio.to_thread(
            start_or_attach,
            server_spec(parameters),
            server_directory(run),
            timeout_s=parameters.lm_server.start_timeout_s,
            env=environment,
        )
    except OwnerError as error:
        if error.reason is not None:  # the server's own word: it is about what it was asked to run
            raise SettingsError(f"lm_server: {error.reason}") from None
        raise ServerError(f"lm_server: {error}") from None


async def check_prompts(session: Session) -> None:
    """Let the server lay out each agent's longest first prompts and a whole conversation.

    Raises SettingsError when the chat template refuses a shape that the game needs, or when the
    longest problem leaves no room for an answer. Servers without /tokenize are not checked.
    """
    parameters, game = session.parameters, session.game
    longest = max(
        (p for problems in session.problems.values() for p in problems),
        key=lambda p: len(p.question) + len(p.solution),
    )
    situation = Situation(longest.question, longest.solution, None, 0)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
        for group, agents in parameters.groups.items():
            if parameters.group_parameters(group).model_provider != "SelfHosted":
                continue
            for agent in agents:
                first = True
                for round_, turns in _sample_conversation(game):
                    if agent not in game.protocol.active(round_, 0):
                        continue
                    chat = game.render(agent, situation, turns, round_)
                    answer = await _tokenize(
                        http, session.endpoint(group), session.base_model(group), chat, agent
                    )
                    if not answer:
                        break  # this server can't say
                    if first:
                        await _check_system_message(http, session, group, chat, agent)
                    room = answer["max_model_len"] - answer["count"]
                    needed = parameters.agents[agent].effective_max_tokens
                    if first and room < needed:
                        raise SettingsError(
                            f"agents.{agent}: the prompt for problem {longest.id!r} takes "
                            f"{answer['count']} of {answer['max_model_len']} tokens and leaves "
                            f"{room} of the {needed} that a message may need; lower "
                            "max_tokens_per_message, use shorter problems or another model"
                        )
                    first = False


async def _check_system_message(
    http: aiohttp.ClientSession,
    session: Session,
    group: str,
    chat: list[dict[str, str]],
    agent: str,
) -> None:
    """Some templates leave system messages out without a word; the problem stands in them."""
    counts = [
        (await _tokenize(http, session.endpoint(group), session.base_model(group), c, agent))[
            "count"
        ]
        for c in (chat, [{**chat[0], "content": "-"}, *chat[1:]])
    ]
    if counts[0] == counts[1]:
        raise SettingsError(
            f"agents.{agent}.model_name: the chat template of {session.base_model(group)!r} leaves "
            "out system messages, so the agent would not see the problem; use another model"
        )


def _sample_conversation(game: Game) -> list[tuple[int, list[Turn]]]:
    """Each round with the turns before it, every message a placeholder."""
    rounds: list[tuple[int, list[Turn]]] = []
    turns: list[Turn] = []
    for round_ in range(game.protocol.max_message_rounds):
        rounds.append((round_, list(turns)))
        for agent, channels in game.protocol.active(round_, 0).items():
            turns.append(Turn(round_, agent, "-", Move(dict.fromkeys(channels, "-"))))
    return rounds


async def _tokenize(
    http: aiohttp.ClientSession,
    endpoint: Endpoint,
    model: str,
    chat: list[dict[str, str]],
    agent: str,
) -> dict[str, Any]:
    url = endpoint.base_url.removesuffix("/v1") + "/tokenize"
    try:
        async with http.post(
            url,
            json={"model": model, "messages": chat},
            headers={"Authorization": f"Bearer {endpoint.api_key}"},
        ) as response:
            body = await response.json(content_type=None)
            status = response.status
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise ServerError(f"{url}: no answer ({type(error).__name__}: {error})") from None
    if status == 200:
        return dict(body)
    message = (body.get("error") or {}).get("message") if isinstance(body, dict) else None
    if status == 400:
        shape = ", ".join(m["role"] for m in chat)
        raise SettingsError(
            f"agents.{agent}.model_name: model {model!r} can't take this game's chats "
            f"({shape}): {message}"
        )
    if status in (401, 403):
        raise SettingsError(f"{url}: the key is refused (HTTP {status}: {message})")
    if status == 404 and message:
        raise SettingsError(f"agents.{agent}.model_name: {message}")
    if status in (404, 405, 501):
        return {}
    raise ServerError(f"{url}: HTTP {status}: {message}")
