"""The engine over a supervised `vllm serve` child: for GPUs, and for the CPU build of vLLM.

VllmEngine      the `Engine` interface
vllm_process    how the child is started and ended; vllm_guard: how it dies with the server
vllm_wire       its HTTP interface as requests and results
vllm_keys       what runs inside the child: a key on every path, no control tokens in messages

Clients' requests are passed through to `upstream`; `generate` and `stream` are for the server's
own parts. Nothing here imports vLLM or torch: they are in an environment of their own.

Adapters are loaded and unloaded while it runs. An adapter's name stands for the same weights as
long as the child lives, since vLLM's prefix cache goes by name and path.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from nip_lm_server.engines import vllm_wire
from nip_lm_server.engines.base import (
    Capabilities,
    Delta,
    EngineError,
    EngineRequestError,
    EngineState,
    GenerationRequest,
    GenerationResult,
    Proof,
    Upstream,
)
from nip_lm_server.engines.proof import ProbeError, Rival, judge, read_probe
from nip_lm_server.engines.vllm_process import (
    Installation,
    VllmProcess,
    checked_extra,
    child_environment,
    find_executable,
    inspect,
)

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM takes for its largest rank."""
UNRESPONSIVE_S = 60.0
"""An engine that gives no sign of health for so long counts as dead."""
HEALTH_INTERVAL_S = 1.0
ADMIN_TIMEOUT_S = 300.0
"""For loading an adapter, sleeping and waking."""
_MAX_RIVALS = 14  # other adapters that a proof compares with
_WITHHELD = frozenset(
    {
        *("kv_transfer_params", "ec_transfer_params", "mm_payload", "media_io_kwargs"),
        *("mm_processor_kwargs", "return_mm_kwargs", "prompt_embeds", "vllm_xargs"),
        *("routed_experts_prompt_start", "return_token_offsets", "request_id", "priority"),
        *("prompt_logprobs", "echo"),
    }
)
"""Parameters not passed on: for talk between vLLM servers, or without effect here. The last two
have vLLM score a prompt, in which it mistakes the adapters of a batch: on a CPU its engine process
dies of that, on CUDA an adapter's output layer is left out (vLLM issues 16668 and 51594)."""
PROBE_PLACES = 32
"""At how many places of a probe a model is compared. Each is a request of one token."""
PROBE_PLACES_CPU, PROBE_TOKENS_CPU = 12, 48
"""The same on a CPU, and how far into the probe: there a token takes 2 ms through an adapter's
matrices at max_lora_rank 64, and a new adapter has to answer within a second."""

_log = logging.getLogger("nip.lm_server.vllm")


class VllmEngine:
    """Serves `base_path` (a directory or a hub name) as `served_name`, and adapters over it.

    `executable` is the `vllm` command or the Python of its environment; None: NIP_VLLM, or what
    the PATH has. `dtype` "auto" is float32 on CPU, bfloat16 on CUDA (float16 where the device has
    none). `quantization` and the numbers are vLLM's own settings, None its defaults.
    `max_lora_rank` is rounded up to a value that vLLM takes; `max_loras` adapters run in one
    batch, `max_cpu_loras` are kept in memory, others are read from disk again when asked for.
    `enable_sleep_mode` "auto": where CUDA is. `enforce_eager` starts faster and runs slower.
    `cpu_kv_cache_gib` is the memory for keys and values without a GPU.
    vLLM's log is ``engines/<name>.log`` in `state_dir`.
    `extra_arguments` go to `vllm serve`, unless they would override ours.

    Raises ValueError for settings that make no sense.
    """

    name = "vllm"

    def __init__(
        self,
        base_path: str,
        served_name: str,
        *,
        state_dir: Path,
        executable: str | None = None,
        dtype: str = "auto",
        quantization: str | None = None,
        max_model_len: int | None = None,
        gpu_memory_utilization: float | None = None,
        tensor_parallel_size: int = 1,
        max_num_seqs: int | None = None,
        max_lora_rank: int = 64,
        max_loras: int = 4,
        max_cpu_loras: int = 32,
        enable_sleep_mode: bool | str = "auto",
        enforce_eager: bool = False,
        cpu_kv_cache_gib: int = 1,
        extra_arguments: Sequence[str] = (),
        start_timeout_s: float = 900.0,
        environment: Mapping[str, str] = os.environ,
        epoch: int = 0,
    ):
        if dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ValueError(f"dtype is {dtype!r}, expected auto, float32, bfloat16 or float16")
        if enable_sleep_mode not in ("auto", True, False):
            raise ValueError(f"enable_sleep_mode is {enable_sleep_mode!r}: true, false or auto")
        if not 1 <= max_lora_rank <= LORA_RANKS[-1]:
            raise ValueError(f"max_lora_rank is {max_lora_rank}, expected 1 to {LORA_RANKS[-1]}")
        if max_cpu_loras < max_loras or max_loras < 1:
            raise ValueError(
                f"max_cpu_loras ({max_cpu_loras}) must be at least max_loras ({max_loras}), and "
                "that at least 1"
            )
        self.base_path = base_path
        self.base_model = served_name
        self.epoch = epoch
        readable = re.sub(r"[^A-Za-z0-9._-]", "-", served_name)[:80]
        digest = hashlib.sha256(served_name.encode()).hexdigest()[:8]
        self._log_path = Path(state_dir).absolute() / "engines" / f"{readable}-{digest}.log"
        self._executable = executable
        self._dtype, self._quantization = dtype, quantization
        self._sleep_wanted = enable_sleep_mode
        self._cpu_kv_cache_gib = cpu_kv_cache_gib
        self._start_timeout_s = start_timeout_s
        self._environment = dict(environment)
        self._max_lora_rank = next(rank for rank in LORA_RANKS if rank >= max_lora_rank)
        self._settings: dict[str, Any] = {
            "max-model-len": max_model_len,
            "max-num-seqs": max_num_seqs,
            "gpu-memory-utilization": gpu_memory_utilization,
            "tensor-parallel-size": tensor_parallel_size if tensor_parallel_size > 1 else None,
            "max-lora-rank": self._max_lora_rank,
            "max-loras": max_loras,
            "max-cpu-loras": max_cpu_loras,
            "enforce-eager": enforce_eager,
        }
        self._extra = checked_extra(extra_arguments)
        self._state: EngineState = "stopped"
        self._installation: Installation | None = None
        self._process: VllmProcess | None = None
        self._session: aiohttp.ClientSession | None = None
        self._upstream: Upstream | None = None
        self._max_model_len = 0
        self._version = ""
        self._adapters: dict[str, tuple[Path, str]] = {}  # name -> directory, digest of the weights
        self._ever: dict[str, str] = {}  # the same for all names since the start
        # What models gave when they were last scored since the start, by the probe's tokens.
        self._scores: dict[tuple[str, tuple[int, ...]], tuple[float, ...]] = {}

    # Life

    async def start(self) -> None:
        """Start vLLM and wait until it answers. Raises EngineError with its log's end if not."""
        if self._state in ("starting", "running", "sleeping"):
            return
        await self.stop()
        self._state = "starting"
        self.epoch += 1
        try:
            await self._start()
        except BaseException:
            await self._end()
            self._state = "failed"
            raise
        self._state = "running"

    async def _start(self) -> None:
        python = find_executable(self._executable, self._environment)
        installation = self._installation = await inspect(python, self._environment)
        environment = child_environment(
            self._environment,
            python,
            cpu=installation.cpu_build,
            kv_cache_gib=self._cpu_kv_cache_gib,
            sleep=self.capabilities.sleep,
        )
        environment["NIP_VLLM_MODEL"] = self.base_path  # whose tokenizer the middleware reads
        process = self._process = VllmProcess(self._log_path, environment)
        session = self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=600),
            headers={"Authorization": f"Bearer {process.key}"},
        )
        await process.start(python, self._arguments(installation), session, self._start_timeout_s)
        models = await self._get("/v1/models")
        served = next((m for m in models["data"] if m["id"] == self.base_model), None)
        if served is None:
            raise EngineError(f"what listens on {process.url} does not serve {self.base_model!r}")
        self._max_model_len = int(served["max_model_len"])
        self._version = str((await self._get("/version"))["version"])
        schemas = (await self._get("/openapi.json"))["components"]["schemas"]
        self._upstream = Upstream(
            url=process.url,
            api_key=process.key,
            parameters=frozenset(schemas["ChatCompletionRequest"]["properties"]) - _WITHHELD,
            completion_parameters=frozenset(schemas["CompletionRequest"]["properties"]) - _WITHHELD,
        )
        # The first requests compile what they need; a new adapter should not wait for that.
        await self._score(self.base_model, (0, 0), (0,))

    def _arguments(self, installation: Installation) -> list[str]:
        arguments = [
            *(self.base_path, "--served-model-name", self.base_model),
            *("--dtype", self._served_dtype(installation)),
            # Sampling settings are the request's, not the model directory's.
            *("--generation-config", "vllm"),
            *("--enable-lora", "--disable-uvicorn-access-log"),
            # The last one is the first to see a request.
            *("--middleware", "nip_control_tokens.BreakControlTokens"),
            *("--middleware", "nip_vllm_keys.RequireKey"),
        ]
        if installation.cpu_build:
            # A request with a seed whose prompt is taken in pieces kills the engine process: CPU
            # generators of random numbers can't be set back.
            arguments.append("--no-enable-chunked-prefill")
        if self._quantization is not None:
            arguments += ["--quantization", self._quantization]
        if self.capabilities.sleep:
            arguments.append("--enable-sleep-mode")
        for name, value in self._settings.items():
            if value is True:
                arguments.append(f"--{name}")
            elif value is not None and value is not False:
                arguments += [f"--{name}", str(value)]
        return [*arguments, *self._extra]

    def _served_dtype(self, installation: Installation | None) -> str:
        if self._dtype != "auto" or installation is None:
            return self._dtype
        if installation.capability is None:
            return "float32"
        return "bfloat16" if installation.capability >= (8, 0) else "float16"

    async def stop(self) -> None:
        """End vLLM and all its processes, from any state."""
        self._state = "stopped"
        await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        session, self._session = self._session, None
        self._upstream = None
        self._adapters.clear()
        self._ever.clear()
        self._scores.clear()
        if process is not None:
            await process.stop()
        if session is not None:
            await session.close()

    async def sleep(self) -> None:
        """Move the weights to the host's memory and drop keys and values. What runs is aborted.

        Raises EngineError without CUDA or sleep mode.
        """
        if self._state == "sleeping":
            return
        self._serving()
        if not self.capabilities.sleep:
            raise EngineError("vLLM can't sleep here: it needs CUDA and enable_sleep_mode")
        self._state = "sleeping"
        try:
            await self._post("/sleep?level=1&mode=abort")
        except BaseException:
            self._state = "failed"  # nobody knows how far it came
            raise

    async def wake(self) -> None:
        """Undo `sleep`. An adapter that was lost meanwhile is not among `adapters` any more."""
        if self._state != "sleeping":
            self._serving()
            return
        await self._post("/wake_up")
        self._state = "running"
        known = {model["id"] for model in (await self._get("/v1/models"))["data"]}
        self._adapters = {name: a for name, a in self._adapters.items() if name in known}

    async def wait_dead(self) -> str:
        """Return why, once vLLM has ended, or its engine process has, without `stop`."""
        process = self._process
        if process is None or self._session is None:
            if self._state == "failed":
                return "it did not start"
            raise EngineError(f"the engine is {self._state}")
        loop = asyncio.get_running_loop()
        healthy_at = loop.time()
        while True:
            await asyncio.wait({process.exited}, timeout=HEALTH_INTERVAL_S)
            if self._process is not process:
                await asyncio.Event().wait()  # stopped on purpose: nothing to tell, until cancelled
            if process.exited.done():
                reason = f"vLLM {process.ending()}"
                break
            health = await process.health(self._session)
            if health == "ok":
                healthy_at = loop.time()
            elif health == "dead":
                reason = "vLLM's engine process is dead"
                break
            elif loop.time() - healthy_at > UNRESPONSIVE_S:
                reason = f"vLLM has not answered for {UNRESPONSIVE_S:g} s"
                break
        self._state = "failed"
        return f"{reason}; see {self._log_path}"

    # Answering

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Answer, or raise EngineRequestError. Cancelling the await abandons the request."""
        path, body = vllm_wire.request_of(request)
        return vllm_wire.result_of(request, await self._post(path, body))

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        """Answer piece by piece. Closing the iterator abandons the request."""
        path, body = vllm_wire.request_of(request, stream=True)
        body["return_token_ids"] = True  # by which the tokens of a piece are counted
        session, url = self._serving()
        try:
            async with session.post(url + path, json=body) as response:
                if response.status != 200:
                    raise vllm_wire.error_of(response.status, await _body(response))
                first = True
                async for chunk in vllm_wire.events(response.content):
                    for delta in vllm_wire.delta_of(request, chunk, first):
                        first = False
                        yield delta
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineError(f"vLLM stopped answering: {error!r}") from error

    async def tokenize(self, model: str, messages: tuple[dict[str, Any], ...]) -> tuple[int, ...]:
        """Token ids of the prompt these messages give, generation prompt included."""
        body = {"model": model, "messages": list(messages), "add_generation_prompt": True}
        return tuple((await self._post("/tokenize", body))["tokens"])

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus completion, in tokens. Known once the engine has started."""
        if not self._max_model_len:
            raise EngineError(f"the engine is {self._state}")
        return self._max_model_len

    # Adapters

    async def load_adapter(self, name: str, path: Path) -> None:
        """Make the adapter in `path` answer to `name` without stopping anything.

        Loading the same weights again does nothing; other weights under a name that was used since
        the start raise EngineError, and so does what vLLM can't load.
        """
        self._serving()
        if name == self.base_model:
            raise EngineError(f"{name!r} is the base model's name")
        path = path.absolute()
        digest, rank = await asyncio.to_thread(_read_adapter, path)
        if self._ever.get(name, digest) != digest:
            raise EngineError(f"an adapter with other weights already answered to {name!r}")
        if name in self._adapters:
            return
        if rank > self._max_lora_rank:
            raise EngineError(
                f"the adapter in {path} has rank {rank}, the engine takes {self._max_lora_rank} at "
                "most (option max_lora_rank)"
            )
        self._ever[name] = digest
        try:
            await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})
        except EngineRequestError as error:
            raise EngineError(f"vLLM can't load {path}: {error}") from error
        self._adapters[name] = (path, digest)

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; one that isn't loaded is no error."""
        if self._adapters.pop(name, None) is None or self._state != "running":
            return
        with contextlib.suppress(EngineRequestError):  # vLLM does not know it: as wanted
            await self._post("/v1/unload_lora_adapter", {"lora_name": name})

    def loaded_adapters(self) -> tuple[str, ...]:
        """Names of the adapters that answer now, in the order they were loaded."""
        return tuple(self._adapters)

    async def prove(self, name: str, path: Path) -> Proof:
        """Compare what `name` serves with ``probe.json`` in `path`; see `engines.proof`.

        `name` is an adapter or the base model. Raises EngineError if there is no probe.
        """
        self._serving()
        try:
            probe = await asyncio.to_thread(read_probe, path)
        except ProbeError as error:
            raise EngineError(f"{name} can't be proved: {error}") from error
        places = self._places(min(len(probe.tokens), self.max_model_len) - 1)
        own_digest = self._adapters[name][1] if name in self._adapters else None
        others = [other for other in self._adapters if other != name][-_MAX_RIVALS:]
        if name != self.base_model:
            others.append(self.base_model)
        served = await self._score(name, probe.tokens, places)
        rivals = {}
        for other in others:
            scores = self._scores.get((other, probe.tokens))
            if scores is None:
                scores = await self._score(other, probe.tokens, places)
            saved, path_digest = None, self._adapters.get(other)
            if path_digest is not None:
                with contextlib.suppress(ProbeError):
                    known = await asyncio.to_thread(read_probe, path_digest[0])
                    saved = known.at(places).logprobs if known.tokens == probe.tokens else None
            same = path_digest is not None and path_digest[1] == own_digest
            rivals[other] = Rival(scores, saved, same)
        probe = probe.at(places)
        matches, detail = judge(
            probe,
            served,
            rivals,
            base=None if name == self.base_model else self.base_model,
            dtype=self._served_dtype(self._installation),
            quantization=self._quantization or "none",
        )
        detail["unchanged"] = await asyncio.to_thread(_unchanged, path)
        detail["weights_sha256"] = own_digest
        return Proof(matches=matches, detail=detail)

    def _places(self, count: int) -> list[int]:
        """Which of `count` places of a probe are compared: spread evenly, the last among them."""
        cuda = self._installation is not None and self._installation.has_cuda
        count = count if cuda else min(count, PROBE_TOKENS_CPU)
        wanted = min(count, PROBE_PLACES if cuda else PROBE_PLACES_CPU)
        return [(number + 1) * count // wanted - 1 for number in range(wanted)]

    async def _score(
        self, model: str, tokens: tuple[int, ...], places: Sequence[int]
    ) -> tuple[float, ...]:
        """What `model` gives the tokens after these places, computed anew, and kept for others."""
        salt = secrets.token_hex(8)  # nothing that was computed before may answer

        async def one(place: int) -> float:
            body = vllm_wire.forced(model, tokens[: place + 2], salt)
            return vllm_wire.forced_logprob(body, await self._post(vllm_wire.COMPLETIONS, body))

        scores = tuple(await asyncio.gather(*(one(place) for place in places)))
        self._scores[(model, tokens)] = scores
        return scores

    # What it is

    @property
    def state(self) -> EngineState:
        """What the engine is doing."""
        return self._state

    @property
    def capabilities(self) -> Capabilities:
        """What it can do. Whether it can sleep is known once it has been started."""
        cuda = self._installation is not None and self._installation.has_cuda
        return Capabilities(
            logprobs=True,
            max_top_logprobs=vllm_wire.MAX_TOP_LOGPROBS,
            sleep=cuda and self._sleep_wanted is not False,
            max_lora_rank=self._max_lora_rank,
        )

    @property
    def upstream(self) -> Upstream | None:
        """Where requests are passed through to, while it runs."""
        return self._upstream if self._state == "running" else None

    def status(self) -> dict[str, Any]:
        """JSON-encodable facts: state, epoch, where it is, versions."""
        installation, process = self._installation, self._process
        facts: dict[str, Any] = {
            "engine": self.name,
            "state": self._state,
            "epoch": self.epoch,
            "base_model": self.base_model,
            "adapters": list(self._adapters),
            "log": str(self._log_path),
            "max_lora_rank": self._max_lora_rank,
            "quantization": self._quantization or "none",
        }
        if installation is not None:
            facts["versions"] = {**installation.versions, "vllm": self._version or "?"}
            facts["device"] = "cuda" if installation.has_cuda else "cpu"
            facts["dtype"] = self._served_dtype(installation)
        if process is not None and self._state in ("running", "sleeping"):
            facts |= {"pid": process.pid, "port": process.port, "url": process.url}
            facts["max_model_len"] = self._max_model_len
        return facts

    # HTTP

    def _serving(self) -> tuple[aiohttp.ClientSession, str]:
        if self._state != "running" or self._session is None or self._process is None:
            raise EngineError(f"the engine is {self._state}")
        return self._session, self._process.url

    async def _get(self, path: str) -> Any:
        return await self._call("GET", path, None)

    async def _post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return await self._call("POST", path, body)

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        session, process = self._session, self._process
        if session is None or process is None or self._state in ("stopped", "failed"):
            raise EngineError(f"the engine is {self._state}")
        try:
            async with session.request(method, process.url + path, json=body) as response:
                value = await _body(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineError(f"vLLM does not answer {path}: {error!r}") from error
        if response.status != 200:
            raise vllm_wire.error_of(response.status, value)
        return value


async def _body(response: aiohttp.ClientResponse) -> Any:
    text = await response.text()
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read_adapter(path: Path) -> tuple[str, int]:
    """(digest of the weights and their settings, rank). Raises EngineError."""
    try:
        settings = json.loads((path / "adapter_config.json").read_text())
        with (path / "adapter_model.safetensors").open("rb") as file:
            weights = hashlib.file_digest(file, "sha256").hexdigest()
        ranks = [int(settings["r"]), *(settings.get("rank_pattern") or {}).values()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{path} is no LoRA adapter: {error!r}") from error
    scaling = {
        key: settings.get(key)
        for key in ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")
    }
    joined = json.dumps([weights, scaling], sort_keys=True)
    return hashlib.sha256(joined.encode()).hexdigest(), max(ranks)


def _unchanged(path: Path) -> bool:
    """Whether the training said that it changed nothing."""
    try:
        result = json.loads((path / "training_result.json").read_text())
        return bool(result.get("unchanged", False))
    except (OSError, ValueError, AttributeError):
        return False
