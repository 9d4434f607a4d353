"""The engine over a supervised `vllm serve` child: for GPUs, and for the CPU build of vLLM.

VllmEngine      the `Engine` interface
vllm_options    its settings, and what may not be one
vllm_process    how the child is started, asked and ended; vllm_guard: how it dies with the server
../vllm_keys    what runs inside the child: a key on every path, no control tokens in messages

Clients' requests are passed through to `upstream`. Nothing here imports vLLM or torch: they are
in an environment of their own.

Adapters are loaded and unloaded while it runs. An adapter's name stands for the same weights as
long as the child lives, since vLLM's prefix cache goes by name and path.
"""

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nip_lm_server.engines.adapter_files import (
    ServedAdapter,
    is_unchanged,
    read_adapter,
)
from nip_lm_server.engines.base import (
    Capabilities,
    Engine,
    EngineError,
    EngineRequestError,
    Upstream,
)
from nip_lm_server.engines.probes import (
    MAX_RIVALS,
    ProbeError,
    Scores,
    judge_probe,
    read_probe,
    saved_logprobs,
)
from nip_lm_server.engines.vllm_options import VllmOptions
from nip_lm_server.engines.vllm_process import (
    Installation,
    VllmProcess,
    child_environment,
    find_executable,
    inspect,
)
from nip_lm_server.proof import Proof

MAX_TOP_LOGPROBS = 20
UNRESPONSIVE_S = 60.0
"""An engine that gives no sign of health for so long counts as dead."""
HEALTH_INTERVAL_S = 1.0
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


class VllmEngine(Engine):
    """Serves `base_path` (a directory or a hub name) as `served_name`, and adapters over it.

    `options` are those of `VllmOptions`. vLLM's log is ``engines/<name>.log`` in `state_dir`.
    """

    name = "vllm"

    def __init__(
        self,
        base_path: str,
        served_name: str,
        *,
        state_dir: Path,
        environment: Mapping[str, str] = os.environ,
        **options: Any,
    ):
        self.base_path, self.base_model = base_path, served_name
        self._options = VllmOptions(**options)
        readable = re.sub(r"[^A-Za-z0-9._-]", "-", served_name)[:80]
        digest = hashlib.sha256(served_name.encode()).hexdigest()[:8]
        self._log_path = Path(state_dir).absolute() / "engines" / f"{readable}-{digest}.log"
        self._environment = dict(environment)
        self._installation: Installation | None = None
        self._process: VllmProcess | None = None
        self._upstream: Upstream | None = None
        self._max_model_len = 0
        self._version = "?"
        self._adapters: dict[str, ServedAdapter] = {}
        self._digests: dict[str, str] = {}  # of all names that have answered since the start
        # What models gave when they were last scored since the start, by the probe's tokens.
        self._scores: dict[tuple[str, tuple[int, ...]], tuple[float, ...]] = {}

    # Life

    async def _start(self) -> None:
        # 1. Look at the environment that vLLM is installed in.
        python = find_executable(self._options.executable, self._environment)
        installation = self._installation = await inspect(python, self._environment)
        environment = child_environment(
            self._environment,
            python,
            cpu=installation.cpu_build,
            kv_cache_gib=self._options.cpu_kv_cache_gib,
            sleep=self.capabilities.sleep,
        )
        environment["NIP_VLLM_MODEL"] = self.base_path  # whose tokenizer the middleware reads
        # 2. Start the child and wait until it is healthy.
        process = self._process = VllmProcess(self._log_path, environment)
        arguments = self._arguments(installation)
        await process.start(python, arguments, self._options.start_timeout_s)
        # 3. Ask it what it serves and which parameters it takes.
        models = await process.call("GET", "/v1/models")
        served = next((m for m in models["data"] if m["id"] == self.base_model), None)
        if served is None:
            raise EngineError(f"what listens on {process.url} does not serve {self.base_model!r}")
        self._max_model_len = int(served["max_model_len"])
        self._version = str((await process.call("GET", "/version"))["version"])
        schemas = (await process.call("GET", "/openapi.json"))["components"]["schemas"]
        self._upstream = Upstream(
            url=process.url,
            api_key=process.key,
            parameters=frozenset(schemas["ChatCompletionRequest"]["properties"]) - _WITHHELD,
            completion_parameters=frozenset(schemas["CompletionRequest"]["properties"]) - _WITHHELD,
        )
        # 4. The first requests compile what they need; a new adapter should not wait for that.
        await self._score(self.base_model, (0, 0), (0,))

    def _arguments(self, installation: Installation) -> list[str]:
        arguments = [
            *(self.base_path, "--served-model-name", self.base_model),
            *("--dtype", self._served_dtype()),
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
        if self.capabilities.sleep:
            arguments.append("--enable-sleep-mode")
        return [*arguments, *self._options.arguments()]

    def _served_dtype(self) -> str:
        installation = self._installation
        if self._options.dtype != "auto" or installation is None:
            return self._options.dtype
        if installation.capability is None:
            return "float32"
        return "bfloat16" if installation.capability >= (8, 0) else "float16"

    async def stop(self) -> None:
        self._state = "stopped"
        process, self._process = self._process, None
        self._upstream = None
        self._adapters.clear()
        self._digests.clear()
        self._scores.clear()
        if process is not None:
            await process.stop()

    async def sleep(self) -> None:
        """Move the weights to the host's memory and drop keys and values. What runs is aborted.

        Raises EngineError without CUDA or sleep mode.
        """
        if self._state == "sleeping":
            return
        self._refuse_unless("running")
        if not self.capabilities.sleep:
            raise EngineError("vLLM can't sleep here: it needs CUDA and enable_sleep_mode")
        self._state = "sleeping"
        try:
            await self._serving().call("POST", "/sleep?level=1&mode=abort")
        except BaseException:
            self._state = "failed"  # nobody knows how far it came
            raise

    async def wake(self) -> None:
        """Undo `sleep`. An adapter that was lost meanwhile is not among the loaded any more."""
        self._refuse_unless("running", "sleeping")
        if self._state == "running":
            return
        process = self._serving()
        await process.call("POST", "/wake_up")
        self._state = "running"
        known = {model["id"] for model in (await process.call("GET", "/v1/models"))["data"]}
        self._adapters = {name: a for name, a in self._adapters.items() if name in known}

    async def wait_dead(self) -> str:
        """Return why, once vLLM has ended, or its engine process has, without `stop`."""
        process = self._process
        if process is None:
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
            health = await process.health()
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

    # Adapters

    async def load_adapter(self, name: str, path: Path) -> None:
        """Make the adapter in `path` answer to `name` without stopping anything.

        Loading the same weights again does nothing; other weights under a name that was used since
        the start raise EngineError, and so does what vLLM can't load.
        """
        self._refuse_unless("running")
        if name == self.base_model:
            raise EngineError(f"{name!r} is the base model's name")
        adapter = await asyncio.to_thread(read_adapter, path.absolute())
        if self._digests.get(name, adapter.digest) != adapter.digest:
            raise EngineError(f"an adapter with other weights already answered to {name!r}")
        if name in self._adapters:
            return
        most = self._options.served_lora_rank
        if adapter.rank > most:
            raise EngineError(
                f"the adapter in {adapter.path} has rank {adapter.rank}, the engine takes {most} "
                "at most (option max_lora_rank)"
            )
        self._digests[name] = adapter.digest
        body = {"lora_name": name, "lora_path": str(adapter.path)}
        try:
            await self._serving().call("POST", "/v1/load_lora_adapter", body)
        except EngineRequestError as error:
            raise EngineError(f"vLLM can't load {adapter.path}: {error}") from error
        self._adapters[name] = adapter

    async def unload_adapter(self, name: str) -> None:
        if self._adapters.pop(name, None) is None or self._state != "running":
            return
        with contextlib.suppress(EngineRequestError):  # vLLM does not know it: as wanted
            await self._serving().call("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    def loaded_adapters(self) -> tuple[str, ...]:
        return tuple(self._adapters)

    async def prove(self, name: str, path: Path) -> Proof:
        """Compare what `name` serves with ``probe.json`` in `path`; see `engines.probes`.

        `name` is an adapter or the base model. Raises EngineError if there is no probe.
        """
        self._refuse_unless("running")
        try:
            probe = await asyncio.to_thread(read_probe, path)
        except ProbeError as error:
            raise EngineError(f"{name} can't be proved: {error}") from error
        # 1. Score the model anew at some places of the probe.
        places = self._places(min(len(probe.tokens), self.max_model_len) - 1)
        served = await self._score(name, probe.tokens, places)
        # 2. Have the scores of everything else that answers, and what is saved of it.
        digest = self._adapters[name].digest if name in self._adapters else None
        rivals = {}
        for rival, adapter in [i for i in self._adapters.items() if i[0] != name][-MAX_RIVALS:]:
            rivals[rival] = Scores(
                await self._score_once(rival, probe.tokens, places),
                await asyncio.to_thread(saved_logprobs, adapter.path, probe.tokens, places),
                same_weights=adapter.digest == digest,
            )
        base = None
        if name != self.base_model:
            base = self.base_model
            rivals[base] = Scores(await self._score_once(base, probe.tokens, places))
        # 3. Compare.
        matches, figures = judge_probe(
            probe.at(places),
            served,
            rivals,
            base=base,
            dtype=self._served_dtype(),
            quantization=self._options.quantization or "none",
        )
        figures["unchanged"] = await asyncio.to_thread(is_unchanged, path)
        figures["weights_sha256"] = digest
        return Proof(matches, figures)

    def _places(self, count: int) -> list[int]:
        """Choose which of `count` places are compared: spread evenly, the last among them."""
        cuda = self._installation is not None and self._installation.has_cuda
        count = count if cuda else min(count, PROBE_TOKENS_CPU)
        compared = min(count, PROBE_PLACES if cuda else PROBE_PLACES_CPU)
        return [(number + 1) * count // compared - 1 for number in range(compared)]

    async def _score_once(
        self, model: str, tokens: tuple[int, ...], places: Sequence[int]
    ) -> tuple[float, ...]:
        scores = self._scores.get((model, tokens))
        return await self._score(model, tokens, places) if scores is None else scores

    async def _score(
        self, model: str, tokens: tuple[int, ...], places: Sequence[int]
    ) -> tuple[float, ...]:
        """Compute anew what `model` gives the tokens after these places, and remember it."""
        salt = secrets.token_hex(8)  # nothing that was computed before may answer
        each = [self._logprob(model, tokens[: place + 2], salt) for place in places]
        scores = tuple(await asyncio.gather(*each))
        self._scores[(model, tokens)] = scores
        return scores

    async def _logprob(self, model: str, tokens: tuple[int, ...], salt: str) -> float:
        """The log-probability of the last token, given all before it: the answer can be no other.

        It is the model's own, since the restriction comes later. Raises EngineError.
        """
        answer = await self._serving().call(
            "POST",
            "/v1/completions",
            {
                "model": model,
                "prompt": list(tokens[:-1]),
                "allowed_token_ids": [tokens[-1]],
                "max_tokens": 1,
                "ignore_eos": True,
                "skip_special_tokens": False,
                "temperature": 0,
                "logprobs": 0,
                "return_token_ids": True,
                "cache_salt": salt,
            },
        )
        try:
            (choice,) = answer["choices"]
            if answer["model"] != model or choice["token_ids"] != [tokens[-1]]:
                raise ValueError(f"{answer['model']} answered with {choice['token_ids']}")
            (logprob,) = choice["logprobs"]["token_logprobs"]
            return float(logprob)
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"vLLM gave no log-probability of the probe: {error!r}") from error

    # What it is

    @property
    def max_model_len(self) -> int:
        if not self._max_model_len:
            raise EngineError(f"the engine is {self._state}")
        return self._max_model_len

    @property
    def capabilities(self) -> Capabilities:
        """Its abilities. Whether it can sleep is known once it has been started."""
        cuda = self._installation is not None and self._installation.has_cuda
        return Capabilities(
            logprobs=True,
            max_top_logprobs=MAX_TOP_LOGPROBS,
            sleep=cuda and self._options.enable_sleep_mode is not False,
            max_lora_rank=self._options.served_lora_rank,
        )

    @property
    def upstream(self) -> Upstream | None:
        return self._upstream if self._state == "running" else None

    def status(self) -> dict[str, Any]:
        installation, process = self._installation, self._process
        facts = super().status() | {
            "log": str(self._log_path),
            "max_lora_rank": self._options.served_lora_rank,
            "quantization": self._options.quantization or "none",
        }
        if installation is not None:
            facts["versions"] = {**installation.versions, "vllm": self._version}
            facts["device"] = "cuda" if installation.has_cuda else "cpu"
            facts["dtype"] = self._served_dtype()
        if process is not None and self._state in ("running", "sleeping"):
            facts |= {"pid": process.pid, "port": process.port, "url": process.url}
            facts["max_model_len"] = self._max_model_len
        return facts

    def _serving(self) -> VllmProcess:
        if self._process is None or self._state in ("stopped", "failed"):
            raise EngineError(f"the engine is {self._state}")
        return self._process
