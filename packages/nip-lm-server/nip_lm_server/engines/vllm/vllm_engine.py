"""The engine over a supervised `vllm serve` child: for GPUs, and for the CPU build of vLLM.

VllmEngine          the `Engine` interface
options             its settings, and the arguments that are refused
installation        the environment of vLLM, and the releases that are refused
adapter_proof       the proof that a model is served as it was saved
process             the child: its start, its calls and its end
threads             the threads of the CPU build
guard               the process that ends the child with the server
vllm_keys           middleware inside the child: a key on every path, no control tokens in texts

Clients' requests are passed through to `upstream`. Nothing here imports vLLM or torch: they are
in an environment of their own.

Adapters are loaded and unloaded while vLLM runs. An adapter's name stands for the same weights as
long as the child lives, since vLLM's prefix cache goes by name and path.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nip_base.machine.devices import has_cuda, only_on
from nip_base.proof import Proof
from nip_base.spec import ENGINES
from nip_lm_server.engines.base import (
    Capabilities,
    Engine,
    EngineError,
    Upstream,
    WorkDone,
)
from nip_lm_server.engines.vllm.adapter_proof import VllmProver
from nip_lm_server.engines.vllm.installation import Installation, find_executable, inspect
from nip_lm_server.engines.vllm.options import VllmOptions, find_wide_vocabulary
from nip_lm_server.engines.vllm.process import (
    HEALTH_TIMEOUT_S,
    VllmProcess,
    child_environment,
)
from nip_lm_server.lora.adapter_files import ServedAdapter, read_adapter

MAX_TOP_LOGPROBS = 20  # vLLM's own limit, unless an argument raises it
UNRESPONSIVE_S = 60.0
"""An engine without a sign of health for so long counts as dead. Long, because a new start loses
its running answers."""
HEALTH_INTERVAL_S = 1.0
"""A dead engine process is noticed within this time, which is short beside UNRESPONSIVE_S. A vLLM
that exits is noticed at once."""
_log = logging.getLogger("nip.lm_server.vllm")
_WITHHELD = frozenset(
    {
        *("kv_transfer_params", "ec_transfer_params", "mm_payload", "media_io_kwargs"),
        *("mm_processor_kwargs", "return_mm_kwargs", "prompt_embeds", "vllm_xargs"),
        *("routed_experts_prompt_start", "return_token_offsets", "request_id", "priority"),
        *("prompt_logprobs", "echo"),
    }
)
"""Parameters not passed on: for talk between vLLM servers, or without effect here. The last two
make vLLM score a prompt, for which it confuses the adapters of a batch: on a CPU its engine process
dies of that, on CUDA an adapter's output layer is left out (vLLM issues 16668 and 51594)."""


_COUNTERS = {
    name: re.compile(rf"^vllm:{metric}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", re.MULTILINE)
    for name, metric in (
        ("prompt", "prompt_tokens_total"),
        ("generation", "generation_tokens_total"),
        ("iteration", "iteration_tokens_total_sum"),  # counts each piece of a prompt
    )
}


class VllmEngine(Engine):
    """Serves `base_path` (a directory or a hub name) as `served_name`, and adapters over it.

    `options` are the fields of `VllmOptions`. vLLM's log is ``engines/<name>.log`` in `state_dir`.
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
        # Names with slashes, and long ones, are no file names. The digest keeps names apart that
        # become alike.
        readable = re.sub(r"[^A-Za-z0-9._-]", "-", served_name)[:80]
        digest = hashlib.sha256(served_name.encode()).hexdigest()[:8]
        self._log_path = Path(state_dir).absolute() / "engines" / f"{readable}-{digest}.log"
        self._caches = Path(state_dir).absolute() / "caches"
        self._environment = dict(environment)
        # Without CUDA there are no devices to choose from.
        if self._options.device == "cpu" or has_cuda(environment):
            self._environment = only_on(environment, self._options.cuda_device, "device")
        self._installation: Installation | None = None
        self._process: VllmProcess | None = None
        self._upstream: Upstream | None = None
        self._max_model_len = 0
        self._version = "?"
        self._warnings: tuple[str, ...] = ()
        self._adapters: dict[str, ServedAdapter] = {}
        self._digests: dict[str, str] = {}  # by each name that has answered since the start
        self._prover: VllmProver | None = None
        self._template_facts: dict[str, Any] = {}

    # Life

    async def _start(self) -> None:
        # 1. Look at the environment that vLLM is installed in.
        installation = self._installation = await self._inspect()
        environment = child_environment(
            self._environment,
            installation.python,
            model=self.base_path,
            cpu=installation.cpu_build,
            kv_cache_gib=self._options.cpu_kv_cache_gib,
            sleep=self.capabilities.sleep,
            caches=self._caches,
        )
        # For the middleware, which reads the model's tokenizer and writes its template's facts.
        environment["NIP_VLLM_MODEL"] = self.base_path
        environment["NIP_VLLM_TEMPLATE"] = json.dumps(dict(self._options.chat_template_kwargs))
        facts = self._log_path.with_suffix(".template.json")
        environment["NIP_VLLM_FACTS"] = str(facts)
        # 2. Start the child and wait until it is healthy.
        process = self._process = VllmProcess(self._log_path, environment)
        arguments = self._arguments(installation)
        try:
            await process.start(installation.python, arguments, self._options.start_timeout_s)
        except EngineError as error:
            # vLLM's own error does not name this cause.
            reason = find_wide_vocabulary(self.base_path)
            raise EngineError(f"{error}\n{reason}" if reason else str(error)) from error
        # 3. Ask it for its models and parameters. The facts of the template, which the middleware
        #    writes, are for the status: without them a client knows less of the template, and the
        #    start does not fail.
        with contextlib.suppress(OSError, ValueError):
            self._template_facts = json.loads(facts.read_text())
        models = await process.call("GET", "/v1/models")
        base = next((m for m in models["data"] if m["id"] == self.base_model), None)
        # It was healthy, so a server answers there; this shows whether it is ours.
        if base is None:
            raise EngineError(f"what listens on {process.url} does not serve {self.base_model!r}")
        self._max_model_len = int(base["max_model_len"])
        self._version = str((await process.call("GET", "/version"))["version"])
        schemas = (await process.call("GET", "/openapi.json"))["components"]["schemas"]
        self._upstream = Upstream(
            url=process.url,
            api_key=process.key,
            parameters=frozenset(schemas["ChatCompletionRequest"]["properties"]) - _WITHHELD,
            completion_parameters=frozenset(schemas["CompletionRequest"]["properties"]) - _WITHHELD,
        )
        # 4. Compile, which the first requests do; a new adapter should not wait for that.
        self._prover = VllmProver(
            self.base_model,
            process.call,
            has_cuda=installation.has_cuda,
            dtype=self._served_dtype(),
            quantization=self._options.quantization or "none",
        )
        await self._prover.warm_up()
        # 5. Sleep once: the first sleep reserves memory of the host's, which takes long.
        if self._options.rehearse_sleep and self.capabilities.sleep:
            await process.sleep()
            await process.wake()

    async def _inspect(self) -> Installation:
        """Inspect vLLM before its start. Raises EngineError if it would fail or serve wrongly."""
        options = self._options
        python = find_executable(options.executable, self._environment)
        installation = await inspect(python, self._environment)
        self._warnings = installation.check(
            quantization=options.quantization,
            device=options.device,
            devices=options.device_count or 1,  # None: vLLM checks a user's arguments
        )
        for warning in self._warnings:
            _log.warning("%s", warning)
        return installation

    def _arguments(self, installation: Installation) -> list[str]:
        arguments = [
            *(self.base_path, "--served-model-name", self.base_model),
            *("--dtype", self._served_dtype()),
            # Sampling settings are the request's, not the model directory's.
            *("--generation-config", "vllm"),
            *("--enable-lora", "--disable-uvicorn-access-log"),
            # The last middleware sees a request first.
            *("--middleware", "nip_control_tokens.BreakControlTokens"),
            *("--middleware", "nip_vllm_keys.RequireKey"),
        ]
        if installation.cpu_build:
            # A request with a seed whose prompt is read in pieces kills the engine process: CPU
            # generators of random numbers can't be set back.
            arguments.append("--no-enable-chunked-prefill")
        if self.capabilities.sleep:
            arguments.append("--enable-sleep-mode")
        return [*arguments, *self._options.arguments()]

    def _served_dtype(self) -> str:
        """The precision of vLLM's answers, with "auto" resolved.

        vLLM would not report its own choice, so "auto" is resolved here: the limits of the proof
        depend on the precision, and the status shows it. "auto" remains until the installation was
        inspected.
        """
        installation = self._installation
        if self._options.dtype != "auto" or installation is None:
            return self._options.dtype
        # Without the noise of half precisions a proof needs few places (`CPU_TOKENS`), and so is
        # quick enough on a CPU.
        if installation.capability is None:
            return "float32"
        # Older devices have no bfloat16.
        return "bfloat16" if installation.capability >= (8, 0) else "float16"

    async def stop(self) -> None:
        # All of this before the first await: requests that come meanwhile are refused, and
        # `wait_dead` sees that the end was wanted.
        self._state = "stopped"
        process, self._process = self._process, None
        self._upstream = None
        self._adapters.clear()
        self._digests.clear()
        self._prover = None
        if process is not None:
            await process.stop()

    async def sleep(self) -> None:
        """Move the weights to the host's memory and drop keys and values.

        Running answers end at once with their text so far and the finish reason "abort".
        Raises EngineError without CUDA or sleep mode.
        """
        if self._state == "sleeping":
            return
        self._refuse_unless("running")
        if not self.capabilities.sleep:
            raise EngineError("vLLM can't sleep here: it needs CUDA and enable_sleep_mode")
        # Before the call: from now on requests would be aborted.
        self._state = "sleeping"
        try:
            await self._serving().sleep()
        except BaseException:
            self._state = "failed"  # vLLM may be half asleep
            raise

    async def wake(self) -> None:
        """Undo `sleep`. `loaded_adapters` has no adapters lost meanwhile."""
        self._refuse_unless("running", "sleeping")
        if self._state == "running":
            return
        process = self._serving()
        await process.wake()
        self._state = "running"
        # vLLM lists its adapters: requests for one that it has lost would fail.
        names = {model["id"] for model in (await process.call("GET", "/v1/models"))["data"]}
        self._adapters = {name: a for name, a in self._adapters.items() if name in names}

    async def wait_dead(self) -> str:
        """Wait until vLLM or its engine process ends without `stop`, and return the reason."""
        process = self._process
        if process is None:
            # A failed start has stopped the process itself, so there is none to watch.
            if self._state == "failed":
                return "it did not start"
            raise EngineError(f"the engine is {self._state}")
        loop = asyncio.get_running_loop()
        healthy_at = loop.time()
        while True:
            await asyncio.wait({process.exited}, timeout=HEALTH_INTERVAL_S)
            # First: a process that `stop` has ended has exited as well.
            if self._process is not process:
                await asyncio.Event().wait()  # stopped on purpose: wait until cancelled
            if process.exited.done():
                reason = f"vLLM {process.describe_end()}"
                break
            # The HTTP server outlives its engine process, and either may hang: both are checked.
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

    async def measure_work(self) -> WorkDone | None:
        """Count the work reported by vLLM; None while it reports none."""
        process = self._process
        if process is None or self._state != "running":
            return None
        try:
            text = str(await process.call("GET", "/metrics", timeout_s=HEALTH_TIMEOUT_S))
        except EngineError:  # `wait_dead` finds the cause
            return None
        totals = {name: sum(map(float, each.findall(text))) for name, each in _COUNTERS.items()}
        return WorkDone(int(totals["prompt"]), int(totals["generation"]), int(totals["iteration"]))

    # Adapters

    async def load_adapter(self, name: str, path: Path) -> None:
        """Make the adapter in `path` answer to `name` without stopping anything.

        Loading the same weights again does nothing. Raises EngineError for other weights under a
        name that was used since the start, and for files that vLLM can't load.
        """
        self._refuse_unless("running")
        # vLLM would have two models of one name, and either might answer.
        if name == self.base_model:
            raise EngineError(f"{name!r} is the base model's name")
        adapter = await asyncio.to_thread(read_adapter, path.absolute())
        # vLLM's prefix cache goes by the adapter's name: it would use keys and values of the old
        # weights for the new ones.
        if self._digests.get(name, adapter.digest) != adapter.digest:
            raise EngineError(f"an adapter with other weights already answered to {name!r}")
        if name in self._adapters:  # the same weights, by the digest
            return
        limit = self._options.served_lora_rank
        # vLLM would refuse it too, but could not name the option.
        if adapter.rank > limit:
            raise EngineError(
                f"the adapter in {adapter.path} has rank {adapter.rank}, the engine takes {limit} "
                "at most (option max_lora_rank)"
            )
        # Before the loading: an adapter may have answered even if the load's answer is lost.
        self._digests[name] = adapter.digest
        await self._serving().load_adapter(name, adapter.path)
        self._adapters[name] = adapter

    async def unload_adapter(self, name: str) -> None:
        # The digest stays: vLLM's prefix cache may still have keys and values under this name. A
        # vLLM that does not run is not called; the next load replaces its adapter of this name.
        if self._adapters.pop(name, None) is None or self._state != "running":
            return
        await self._serving().unload_adapter(name)

    def loaded_adapters(self) -> tuple[str, ...]:
        return tuple(self._adapters)

    async def prove(self, name: str, path: Path) -> Proof:
        """Compare the answers of `name` with ``probe.json`` in `path`; see `adapter_proof`.

        `name` is an adapter or the base model. Raises EngineError if there is no probe.
        """
        self._refuse_unless("running")
        if self._prover is None:
            raise EngineError(f"the engine is {self._state}")
        return await self._prover.prove(name, path, self._adapters, self.max_model_len)

    # Facts

    @property
    def max_model_len(self) -> int:
        if not self._max_model_len:
            raise EngineError(f"the engine is {self._state}")
        return self._max_model_len

    @property
    def capabilities(self) -> Capabilities:
        """Its abilities. `sleep` is only known after the start."""
        cuda = self._installation is not None and self._installation.has_cuda
        return replace(
            ENGINES[self.name],
            logprobs=True,
            max_top_logprobs=MAX_TOP_LOGPROBS,
            sleep=cuda and self._options.enable_sleep_mode is not False,
            max_lora_rank=self._options.served_lora_rank,
        )

    @property
    def upstream(self) -> Upstream | None:
        # Clients must not be sent to a sleeping vLLM.
        return self._upstream if self._state == "running" else None

    def status(self) -> dict[str, Any]:
        installation, process = self._installation, self._process
        facts = super().status() | {
            "log": str(self._log_path),
            "max_lora_rank": self._options.served_lora_rank,
            "quantization": self._options.quantization or "none",
            "gpu_memory_utilization": self._options.gpu_memory_utilization,  # None: vLLM's own
        }
        if installation is not None:
            facts["versions"] = {**installation.versions, "vllm": self._version}
            facts["device"] = self._options.cuda_device if installation.has_cuda else "cpu"
            facts["torch_cuda"], facts["driver"] = installation.torch_cuda, installation.driver
            facts["warnings"] = list(self._warnings)
            facts["dtype"] = self._served_dtype()
        if process is not None and self._state in ("running", "sleeping"):
            facts |= {"pid": process.pid, "port": process.port, "url": process.url}
            facts["max_model_len"] = self._max_model_len
            facts["template_facts"] = self._template_facts
        return facts

    def _serving(self) -> VllmProcess:
        if self._process is None or self._state in ("stopped", "failed"):
            raise EngineError(f"the engine is {self._state}")
        return self._process
