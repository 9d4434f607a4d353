"""Engines and servers that the pieces measure: vLLM where it is, the embedded engine in its place.

find_vllm      the `vllm` command, or why there is none
engine_names   which engines are measured
options_for    the options of an engine
Served         a server that is started when it is first asked for
job            a fine-tuning job by HTTP, waited for
"""

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from beside.runs import Failed
from beside.serving import call, directory_of
from pass_through import Place

from gpu_pieces import models
from gpu_pieces.sizes import Session, Shape
from nip_base.formats import to_jsonl
from nip_base.spec import ServerSpec
from nip_lm_server import launch

START_S, JOB_S = 500.0, 500.0
"""Within a piece's ten minutes; times `Session.patience`."""
POLL_S = 0.05


def find_vllm(*, rehearsal: bool) -> tuple[Path | None, str]:
    """The Python of vLLM's environment and what it is; None and why there is none that will do."""
    from nip_lm_server.engines.base import EngineError
    from nip_lm_server.engines.vllm.installation import find_executable, inspect

    try:
        python = find_executable(None, os.environ)
        installation = asyncio.run(inspect(python, os.environ))
        warnings = installation.check()
    except EngineError as error:
        return None, str(error)
    build = "CPU" if installation.cpu_build else f"CUDA {installation.torch_cuda}"
    what = "; ".join([f"vLLM {installation.versions['vllm']} ({build})", *warnings])
    if not rehearsal and not installation.has_cuda:
        return None, f"{what} has no GPU here"
    return python, what


def engine_names(session: Session) -> tuple[dict[str, str], Path | None]:
    """The engines, each with the reason why it is not measured ("": it is); and vLLM's Python.

    The embedded engine is measured where vLLM can't be, and beside it in a rehearsal.
    """
    python, what = find_vllm(rehearsal=session.rehearsal)
    if python is None:
        return {"vllm": what, "embedded": ""}, None
    beside = "" if session.rehearsal else "measured with vLLM"
    return {"vllm": "", "embedded": beside}, python


def options_for(session: Session, engine: str, vllm: Path | None, **more: Any) -> dict[str, Any]:
    """The options of an engine. `more` are those of vLLM alone."""
    sizes = session.sizes
    context = {"max_model_len": sizes.served_context}
    if engine == "embedded":
        return {**context, "max_batch": max(sizes.in_flight)}
    return {
        **context,
        "executable": str(vllm),
        "max_num_seqs": max(sizes.in_flight),
        "max_lora_rank": sizes.lora_rank,
        "max_loras": 3,
        **sizes.options,
        **more,
    }


class Served:
    """A server of one engine over one shape. It starts when `handle` is first asked for.

    A start that fails is not tried again: everything that asks gets its reason. Use as a context
    manager.
    """

    def __init__(
        self,
        session: Session,
        shape: Shape,
        engine: str,
        state: Path,
        vllm: Path | None,
        *,
        share_device: str = "auto",
        loaded: int = 32,
        **options: Any,
    ):
        self._session, self._shape, self._state = session, shape, state
        self._engine, self._share, self._loaded = engine, share_device, loaded
        self._options = options_for(session, engine, vllm, **options)
        self._handle: launch.ServerHandle | None = None
        self._failure: str | None = None
        self._start_s, self.job_s = session.patience * START_S, session.patience * JOB_S
        self.start_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            launch.stop(self._handle)
            self._handle = None

    @property
    def state(self) -> Path:
        """The state directory."""
        return self._state

    @property
    def handle(self) -> launch.ServerHandle:
        """The server. Raises Failed if it did not start."""
        if self._failure is not None:
            raise Failed(self._failure)
        if self._handle is None:
            spec = ServerSpec(
                self._engine,
                str(models.model(self._session, self._shape)),
                served_model_name="base",
                share_device=self._share,
                loaded_adapters=self._loaded,
                options=self._options,
            )
            began = time.monotonic()
            try:
                self._handle = launch.start_or_attach(spec, self._state, timeout_s=self._start_s)
            except launch.OwnerError as error:
                self._failure = f"the server did not start: {str(error)[-1500:]}"
                raise Failed(self._failure) from None
            self.start_s = round(time.monotonic() - began, 2)
        return self._handle

    @property
    def through(self) -> Place:
        """Its own address."""
        return Place("through_nip", self.handle.url, self.handle.api_key)

    @property
    def direct(self) -> Place | None:
        """The address of the engine; None: it lives in the server's process."""
        status, answer = self.get("/nip/engines/base/address")
        if status == 404:
            return None
        return Place("direct", answer["base_url"].removesuffix("/v1"), answer["api_key"])

    def get(self, path: str) -> tuple[int, Any]:
        """GET a path of the server's."""
        return call(self.handle.url + path, self.handle.api_key)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """POST to a path of the server's. Raises Failed for anything but 200."""
        status, answer = call(
            self.handle.url + path, self.handle.api_key, dict(body or {}), self.job_s
        )
        if status != 200:
            raise Failed(f"POST {path}: {status} {str(answer)[:600]}")
        return answer

    def engine(self) -> dict[str, Any]:
        """The engine's facts."""
        facts: dict[str, Any] = self.get("/nip/engines/base")[1]
        return facts

    def restarted(self) -> None:
        """Forget the handle of a server that was killed, so that the next one is started."""
        self._handle = None

    def submit(self, rows: list[dict[str, Any]], seed: int, **settings: Any) -> str:
        """Upload rows and ask for a fine-tune of the base; its id. `settings` are `nip` ones."""
        import openai

        rank = self._session.sizes.lora_rank
        n_epochs, batch_size = settings.pop("n_epochs", 1), settings.pop("batch_size", 5)
        with openai.OpenAI(base_url=self.handle.url + "/v1", api_key=self.handle.api_key) as client:
            file = client.files.create(file=("train.jsonl", to_jsonl(rows)), purpose="fine-tune")
            return client.fine_tuning.jobs.create(
                model="base",
                training_file=file.id,
                seed=seed,
                hyperparameters={"n_epochs": n_epochs, "batch_size": batch_size},
                extra_body={"nip": {"lora_rank": rank, "lora_alpha": 2 * rank, **settings}},
            ).id

    def until(self, done: Callable[[], Any], what: str) -> Any:
        """Return what `done` gives, once it is something. Raises Failed after `job_s`."""
        deadline = time.monotonic() + self.job_s
        while not (value := done()):
            if time.monotonic() > deadline:
                raise Failed(f"{what} took more than {self.job_s:g} s")
            time.sleep(POLL_S)
        return value

    def wait(self, id: str) -> dict[str, Any]:
        """The job, once it has succeeded. Raises Failed with its reason."""

        def succeeded() -> dict[str, Any] | None:
            job: dict[str, Any] = self.get(f"/v1/fine_tuning/jobs/{id}")[1]
            if job["status"] in ("failed", "cancelled"):
                raise Failed(f"the job {job['status']}: {job['error']}")
            return job if job["status"] == "succeeded" else None

        return dict(self.until(succeeded, "the job"))

    def result(self, name: str) -> dict[str, Any]:
        """The figures of the training that made a model."""
        path = directory_of(self._state, name) / "training_result.json"
        result: dict[str, Any] = json.loads(path.read_text())
        return result
