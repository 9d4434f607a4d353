"""What runs on the hosts: A stores and orders, B and C play, D answers.

Site    the four hosts with all that runs on them
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from four_hosts.network import ROOT, Host, HostsError, Network, Program, until

from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_lm_server.engines.scripted.reply_rules import DEFAULT_FILE
from nip_up.postgres import find_binaries

BIN = Path(sys.executable).parent
STORE_PORT, DATABASE_PORT, PREFECT_PORT, DASK_PORT, MODEL_PORT = 9000, 5432, 4200, 8786, 8000
RAY_PORT, RAY_CLIENT_PORT = 6379, 10001
KEY = "key-between-hosts"
BUCKET = "runs"
_QUIET = ("TRIGGERS", "EVENT_PERSISTER", "FOREMAN")
"""Services of Prefect's server that no run asks anything of."""


class Site:
    """The hosts A to D. Use as a context manager; `network` has this process on it."""

    def __init__(self, network: Network, answer_s: float, disk: str = "1g") -> None:
        self.network, self._answer_s = network, answer_s
        self._disk = disk
        self._database: Program | None = None
        self._prefect: Program | None = None

    def __enter__(self) -> Self:
        self.a = self.network.add("a", self._disk)
        self.b = self.network.add("b", self._disk)
        self.c = self.network.add("c", self._disk)
        self.d = self.network.add("d", self._disk)
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://{self.a.address}:{STORE_PORT}",
            "AWS_ACCESS_KEY_ID": "a-test-key",
            "AWS_SECRET_ACCESS_KEY": "a-test-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "PREFECT_API_URL": f"http://{self.a.address}:{PREFECT_PORT}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "DO_NOT_TRACK": "1",
            "NIP_API_KEY": KEY,
            "NIP_HOME": str(ROOT),
        }
        # This process looks into the store, too.
        os.environ.update({n: v for n, v in self.environment.items() if n.startswith("AWS_")})
        self.start_store()
        self.start_model_server()
        self.start_dask()
        for host in (self.b, self.c):
            self.start_player(host)
        self.start_database()
        self.start_prefect()
        self._deploy()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None  # the network takes the hosts with it

    # Host A -----------------------------------------------------------------------------------

    def start_store(self) -> None:
        """Start the object store, with an empty bucket."""
        script = ROOT / "tests" / "helpers" / "s3_server.py"
        self.a.start("store", sys.executable, str(script), self.a.address, str(STORE_PORT))
        self._await_port(self.a, STORE_PORT)
        self._request(f"{self.environment['AWS_ENDPOINT_URL']}/{BUCKET}", method="PUT")

    def trouble(self, delay_s: float = 0.0, refused: float = 0.0) -> None:
        """Let the store answer so much later, and that share of requests with 503."""
        body = json.dumps({"delay_s": delay_s, "refused": refused}).encode()
        self._request(f"{self.environment['AWS_ENDPOINT_URL']}/-/trouble", "POST", body)

    def start_database(self) -> None:
        """Start PostgreSQL, with a new database if there is none."""
        binaries, data = find_binaries(), "/home/a/database"
        as_user = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups")
        if not self.a.path(data).exists():
            self.a.run("install", "-d", "-o", "postgres", "-m", "700", data)
            self.a.run(*as_user, str(binaries / "initdb"), "-D", data, "-U", "nip", "-E", "UTF8",
                       "--locale=C.UTF-8", "--auth=trust")  # fmt: skip
        self._database = self.a.start(
            "postgresql", *as_user, str(binaries / "postgres"), "-D", data, "-k", self.a.temporary
        )
        until(
            lambda: self._database_answers(str(binaries / "pg_isready")), "PostgreSQL answers", 60
        )

    def restart_database(self) -> None:
        """Kill PostgreSQL without a word to its clients, and start it again.

        Its processes are in groups of their own. Until all of them are buried the next one refuses
        to start: their shared memory is in use, and the number in a lock is that of a process.
        """
        assert self._database is not None
        self._database.kill_tree()
        until(lambda: not self._has_user("postgres"), "PostgreSQL's processes are gone", 60)
        self.start_database()

    def start_prefect(self) -> None:
        """Start Prefect's server."""
        server_settings = {
            "PREFECT_API_DATABASE_CONNECTION_URL": (
                f"postgresql+asyncpg://nip@127.0.0.1:{DATABASE_PORT}/postgres"
            ),
            "PREFECT_SERVER_UI_ENABLED": "false",
            **{f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in _QUIET},
        }
        command = ("server", "start", "--host", self.a.address, "--port", str(PREFECT_PORT))
        self._prefect = self.a.start(
            "prefect",
            str(BIN / "prefect"),
            *command,
            environment=self.environment | server_settings,
        )
        until(self._prefect_answers, "Prefect's server answers", 300)

    def restart_prefect(self) -> None:
        """Kill Prefect's server, and start it again."""
        assert self._prefect is not None
        self._prefect.kill()
        self.start_prefect()

    def start_dask(self) -> None:
        """Start Dask's scheduler."""
        self.a.start("dask", str(BIN / "dask"), "scheduler", "--host", self.a.address,
                     "--port", str(DASK_PORT), "--no-dashboard")  # fmt: skip
        self._await_port(self.a, DASK_PORT)

    def _deploy(self) -> None:
        for host in (self.b, self.c):
            self.start_worker(host)  # the first makes the pool
        until(self._has_pool, "a worker makes its pool", 300)
        command = (
            f"cd {ROOT} && {BIN}/prefect --no-prompt deploy --name quickstart --name reconcile"
        )
        self.a.run("sh", "-c", command, environment=self.environment, most_s=300)
        reconcile = self.api("/deployments/name/reconcile/reconcile")
        self.api(f"/deployments/{reconcile['id']}/pause_deployment", {})
        # Runs of different names may be under way at once here.
        train = self.api("/deployments/name/train/quickstart")
        url = f"{self.environment['PREFECT_API_URL']}/deployments/{train['id']}"
        self._request(url, "PATCH", b'{"concurrency_limit": null}')

    # Hosts B, C and D -------------------------------------------------------------------------

    def kill_worker(self, host: Host) -> None:
        """Kill a host's worker with the flow runs that it has started, and start another."""
        self.end_worker(host)
        self.start_worker(host)

    def end_worker(self, host: Host) -> None:
        """Kill a host's worker with the flow runs that it has started."""
        for program in [p for p in host.programs if p.name == "worker"]:
            program.kill_tree()
            host.programs.remove(program)

    def start_worker(self, host: Host) -> Program:
        """Start a worker of the pool."""
        command = ("worker", "start", "--pool", "nip-cpu", "--type", "process", "--name", host.name)
        return host.start("worker", str(BIN / "prefect"), *command, environment=self.environment)

    def kill_player(self, host: Host) -> None:
        """Kill a host's process of the Dask cluster with all that it has started."""
        for program in [p for p in host.programs if p.name == "player"]:
            program.kill_tree()
            host.programs.remove(program)

    def start_player(self, host: Host) -> Program:
        """Start a process of the Dask cluster, of one thread."""
        return host.start("player", str(BIN / "dask"), "worker", f"tcp://{self.a.address}:{DASK_PORT}",
                          "--nthreads", "1", "--no-dashboard", "--local-directory",
                          f"{host.temporary}/dask",
                          environment=self.environment)  # fmt: skip

    def start_model_server(self) -> None:
        """Start `nip serve`, which answers after a while."""
        replies = yaml.safe_load(DEFAULT_FILE.read_text())
        replies |= {"latency_s": {"min": self._answer_s}, "training": {"seconds": 0.5}}
        self.d.path("/home/d").mkdir(exist_ok=True)
        self.d.path("/home/d/replies.yaml").write_text(yaml.safe_dump(replies))
        script = Path(__file__).with_name("counted_server.py")
        arguments = ("--engine", "deterministic", "--model", "deterministic", "--state",
                     "/home/d/state", "--replies", "/home/d/replies.yaml", "--host",
                     self.d.address, "--port", str(MODEL_PORT))  # fmt: skip
        self.d.start("model", sys.executable, str(script), "/home/d/calls", *arguments,
                     environment={"NIP_API_KEYS": KEY, "PYTHONPATH": str(ROOT)})  # fmt: skip
        self._await_port(self.d, MODEL_PORT)

    def calls(self) -> list[tuple[float, str]]:
        """Return when which call was answered."""
        path = self.d.path("/home/d/calls")
        lines = path.read_text().splitlines() if path.exists() else []
        pairs = [line.split() for line in lines if line.count(" ") == 1]
        return [(float(at), seed) for at, seed in pairs]

    def repeated(self, since: int = 0) -> int:
        """Count the calls of those since the first `since` were answered again."""
        return sum(n - 1 for n in Counter(seed for _, seed in self.calls()[since:]).values())

    # Runs -------------------------------------------------------------------------------------

    def settings(self, name: str, episodes: int, **rollouts: Any) -> dict[str, Any]:
        """Return the settings of a run."""
        return {
            "run_name": name,
            "run_store": f"s3://{BUCKET}/runs",
            "dataset": "families",
            "seed": 11,
            "agents": {
                "_default": {
                    "model_provider": "SelfHosted",
                    "model_name": "deterministic",
                    "max_tokens_per_message": 32,
                }
            },
            "lm_server": {
                "engine": "deterministic",
                "url": f"http://{self.d.address}:{MODEL_PORT}",
            },
            "protocol_common": {"shared_reward": True},
            "nip_protocol": {"max_message_rounds": 3, "min_message_rounds": 3},
            "rl": {"num_iterations": 1, "rollouts_per_iteration": episodes, "num_epochs": 1},
            "text_rl": {"test_scheme": "none"},
            "rollouts": {"concurrency": 16, "episodes_per_shard": 25, **rollouts},
            "dataset_options": {"max_train_size": 1000},
            "fine_tuning": {"poll_interval_s": 0.5},
        }

    def on_dask(self) -> dict[str, Any]:
        """Return the settings by which Dask plays the shards."""
        address = f"tcp://{self.a.address}:{DASK_PORT}"
        return {"task_runner": "dask", "task_runner_address": address}

    def on_ray(self) -> dict[str, Any]:
        """Return the settings by which Ray plays the shards; start it on the hosts if need be."""
        if not any(program.name == "ray" for program in self.a.programs):
            self.start_ray()
        address = f"ray://{self.a.address}:{RAY_CLIENT_PORT}"
        return {"task_runner": "ray", "task_runner_address": address}

    def start_ray(self) -> None:
        """Start a Ray cluster: A orders, B and C have one place each for what plays."""
        ports = ("--port", str(RAY_PORT), "--ray-client-server-port", str(RAY_CLIENT_PORT))
        head = ("--head", *ports, "--include-dashboard=false", "--num-cpus", "0")
        environment = self.environment | {"RAY_USAGE_STATS_ENABLED": "0"}
        for host, how in (
            (self.a, head),
            (self.b, ("--address", f"{self.a.address}:{RAY_PORT}", "--num-cpus", "1")),
            (self.c, ("--address", f"{self.a.address}:{RAY_PORT}", "--num-cpus", "1")),
        ):
            size = ("--object-store-memory", "100000000", "--plasma-directory", host.temporary)
            host.start("ray", str(BIN / "ray"), "start", "--block", *how, *size,
                       "--node-ip-address", host.address, environment=environment)  # fmt: skip
            if host is self.a:
                self._await_port(host, RAY_CLIENT_PORT)
        asked = (str(BIN / "ray"), "status", "--address", f"{self.a.address}:{RAY_PORT}")
        until(
            lambda: self._succeeds(self.a, *asked) and "/2.0 CPU" in self.a.run(*asked),
            "both hosts are in Ray's cluster",
            120,
        )

    def schedule(self, settings: dict[str, Any]) -> str:
        """Give every worker's host the configuration, and ask for a flow run of it; its id."""
        name = settings["run_name"]
        for host in (self.b, self.c):
            self.give(host, settings)
        deployment = self.api("/deployments/name/train/quickstart")
        parameters = {"config_file": f"/home/{name}.yaml"}
        asked = {"state": {"type": "SCHEDULED"}, "parameters": parameters}
        made = self.api(f"/deployments/{deployment['id']}/create_flow_run", asked)
        return str(made["id"])

    def give(self, host: Host, settings: dict[str, Any]) -> None:
        """Put a configuration on a host's disk."""
        text = yaml.safe_dump(settings)
        host.path(f"/home/{settings['run_name']}.yaml").write_text(text)

    def state(self, flow_run: str) -> str:
        """Return the type of a flow run's state."""
        return str(self.api(f"/flow_runs/{flow_run}")["state"]["type"])

    def reconcile(self) -> str:
        """Ask for a flow run of `reconcile`, with less patience than its schedule has."""
        deployment = self.api("/deployments/name/reconcile/reconcile")
        parameters = {"watch_s": 5, "restart_after_s": 20, "max_attempts": 20}
        asked = {"state": {"type": "SCHEDULED"}, "parameters": parameters}
        made = self.api(f"/deployments/{deployment['id']}/create_flow_run", asked)
        return str(made["id"])

    def leader(self, name: str) -> Host | None:
        """Find the host whose process holds a run."""
        lease = self.lease(name)
        return self.network.hosts.get(lease["owner"]["host"]) if lease else None

    def lease(self, name: str) -> dict[str, Any] | None:
        """Return what stands in a run's lease; None: nobody holds it."""
        document = self.lease_document(name)
        return document if document and document["state"] == "held" else None

    def lease_document(self, name: str) -> dict[str, Any]:
        """Return the lease as it is on record; empty: there is none."""
        run = self.run_store(name)
        path = f"{run.root}/lease.json"
        return dict(json.loads(run.store.get(path))) if run.store.exists(path) else {}

    def run_store(self, name: str) -> RunStore:
        """Open a run in the bucket."""
        return RunStore(open_store(f"s3://{BUCKET}/runs", read_only=True), name)

    def api(self, path: str, body: Any = None) -> Any:
        """Get from Prefect's API, or POST `body`; again while it does not answer."""
        data = None if body is None else json.dumps(body).encode()
        url, end_s = f"{self.environment['PREFECT_API_URL']}{path}", time.monotonic() + 180
        while True:
            try:
                text = self._request(url, "GET" if data is None else "POST", data)
                return json.loads(text) if text else None
            except (OSError, TimeoutError) as error:
                is_final = isinstance(error, urllib.error.HTTPError) and error.code < 500
                if is_final or time.monotonic() > end_s:
                    raise HostsError(f"{url}: {error}") from error
                time.sleep(1)

    # ------------------------------------------------------------------------------------------

    def _request(self, url: str, method: str = "GET", data: bytes | None = None) -> bytes:
        asked = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        asked.method = method
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return bytes(answer.read())

    def _has_pool(self) -> bool:
        return bool(self.api("/work_pools/filter", {}))

    def _has_user(self, name: str) -> bool:
        """Tell whether any process of host A is this user's."""
        return self._succeeds(self.a, "pgrep", "-u", name)

    def _database_answers(self, ready: str) -> bool:
        assert self._database is not None
        if not self._database.is_running:
            raise HostsError(f"PostgreSQL has ended: {self._database.said()}")
        return self._succeeds(self.a, ready, "-h", "127.0.0.1")

    def _prefect_answers(self) -> bool:
        assert self._prefect is not None
        if not self._prefect.is_running:
            raise HostsError(f"Prefect's server has ended: {self._prefect.said()}")
        try:
            return bool(self._request(f"{self.environment['PREFECT_API_URL']}/health"))
        except OSError:
            return False

    def _await_port(self, host: Host, port: int) -> None:
        test = f"exec 3<>/dev/tcp/{host.address}/{port}"
        what = f"host {host.name} answers at port {port}"
        until(lambda: self._succeeds(host, "bash", "-c", test), what, 120)

    def _succeeds(self, host: Host, *command: str) -> bool:
        try:
            host.run(*command)
        except HostsError:
            return False
        return True
