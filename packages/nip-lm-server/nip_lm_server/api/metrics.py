"""The server's counters, for Prometheus.

Metrics    counters that routes add to, and gauges that are read at each scrape

Routes, kinds of model and statuses are few. Models are many, and each of their names would be a
time series, so only base models' names are labels.
"""

import functools
import shutil
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from nip_base.wire import ACTIVE_STATUSES, ENDED_STATUSES
from nip_lm_server.jobs.events import StepFigures
from nip_lm_server.serving.pool import EnginePool
from nip_lm_server.state.database import Database, load

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
ENGINE_STATES = ("stopped", "starting", "running", "sleeping", "failed")
JOB_STATUSES = (*ACTIVE_STATUSES, *ENDED_STATUSES)
_BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


@dataclass
class RequestNotes:
    """Facts about a request that are not in it."""

    id: str
    model_kind: str = "none"  # base, adapter; none where the request has no model that is served
    body_bytes: int = 0  # of its JSON, unpacked


class Metrics:
    """The counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "nip_requests",
            "Requests that were answered",
            ("route", "model_kind", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "nip_request_seconds",
            "Time from a request to the end of its answer",
            ("route",),
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._tokens = Counter(
            "nip_tokens",
            "Tokens of prompts and of generated text",
            ("kind", "model_kind"),
            registry=registry,
        )
        # Looking a child up by its labels costs more than adding to it.
        self._requests_of = functools.cache(self._requests.labels)
        self._seconds_of = functools.cache(self._seconds.labels)
        self._tokens_of = functools.cache(self._tokens.labels)
        self.in_flight = 0
        gauge = functools.partial(Gauge, registry=registry)
        self._in_flight = gauge("nip_requests_in_flight", "Requests being answered")
        self._disk = gauge("nip_disk_free_bytes", "Free space of the state directory")
        self._jobs = gauge("nip_jobs", "Fine-tuning jobs", ["status"])
        self._steps = gauge("nip_training_steps", "Steps done by the jobs that are running")
        base = ["base_model"]
        self._state = gauge("nip_engine_state", "1 for the state it is in", [*base, "state"])
        self._epoch = gauge("nip_engine_epoch", "How often the engine was started", base)
        self._waiting = gauge("nip_engine_waiting", "Requests that wait for the engine", base)
        self._restarts = gauge(
            "nip_engine_restarts", "How often it died and was started again", base
        )
        self._prompts = gauge(
            "nip_engine_prompt_tokens",
            "Tokens of prompts since the engine's start: asked, done (computed) and reused",
            [*base, "kind"],
        )
        self._adapters = gauge("nip_engine_adapters", "Adapters that are loaded", base)

    def observe(self, route: str, model_kind: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests_of(route, model_kind, status).inc()
        self._seconds_of(route).observe(seconds)

    def add_tokens(self, model_kind: str, prompt: int, generated: int) -> None:
        """Count the tokens of an answer."""
        self._tokens_of("prompt", model_kind).inc(prompt)
        self._tokens_of("generated", model_kind).inc(generated)

    def render(self, state_dir: Path, database: Database, pool: EnginePool) -> bytes:
        """Everything in Prometheus's text format."""
        # 1. The server and its disk.
        self._in_flight.set(self.in_flight)
        self._disk.set(shutil.disk_usage(state_dir).free)
        # 2. The jobs.
        counts = {
            row["status"]: row["count"]
            for row in database.fetch_all(
                "SELECT status, COUNT(*) AS count FROM jobs GROUP BY status"
            )
        }
        for status in JOB_STATUSES:
            self._jobs.labels(status).set(counts.get(status, 0))
        running = database.fetch_all("SELECT progress FROM jobs WHERE status = 'running'")
        self._steps.set(sum(_steps(load(row["progress"])) for row in running))
        # 3. The engines.
        gauges = (self._state, self._epoch, self._restarts, self._waiting, self._adapters)
        for gauge in (*gauges, self._prompts):
            gauge.clear()  # a base model may be gone
        for base in pool.bases():
            engine = base.engine
            for state in ENGINE_STATES:
                self._state.labels(engine.base_model, state).set(engine.state == state)
            self._epoch.labels(engine.base_model).set(engine.epoch)
            self._restarts.labels(engine.base_model).set(base.restarts)
            self._adapters.labels(engine.base_model).set(len(engine.loaded_adapters()))
            facts = engine.status()
            if facts.get("waiting") is not None:
                self._waiting.labels(engine.base_model).set(facts["waiting"])
            for kind in ("asked", "done", "reused"):
                count = facts.get(f"prompt_tokens_{kind}")
                if count is not None:
                    self._prompts.labels(engine.base_model, kind).set(count)
        return generate_latest(self.registry)


def _steps(progress: StepFigures | None) -> float:
    return (progress or {}).get("step") or 0.0
