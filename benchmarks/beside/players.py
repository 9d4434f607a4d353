"""Who plays the same game on the stub: nip, and peers in environments of their own.

Each is a command that plays so many games of nine turns with so many calls in flight, and the same
or another command that goes on after it was killed. All are what a user would type.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import yaml

from nip_core.errors import SettingsError
from nip_up.postgres import find_binaries, start_postgres

ROOT = Path(__file__).parents[2]
PEERS = Path(os.environ.get("PEERS", ROOT / ".peers"))
GAMES = Path(__file__).parent / "peers"
TURNS = 9


# Who plays no part in the run yet, and why.
ABSENT_PLAYERS = {"neural-interactive-proofs": {"reason": "it is not on PyPI"}}


def commit() -> str:
    """nip's commit, `-dirty` if a file of it differs; the results, which runs write, are not it."""
    git = ["git", "-C", str(ROOT)]
    asked = [[*git, "rev-parse", "--short=12", "HEAD"]]
    asked.append([*git, "status", "--porcelain", "--", ":/", ":(top,exclude)docs/results"])
    at, changed = (
        subprocess.run(each, capture_output=True, text=True, check=False).stdout.strip()
        for each in asked
    )
    return f"{at}-dirty" if changed else at


class Player(ABC):
    """One of them, in a directory of its own for each run."""

    name: str

    def absent(self) -> str | None:
        """Give the reason it cannot run here, None if it can."""
        return None

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Give the versions of what matters, by package."""

    @abstractmethod
    def start(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """Give the command that plays from the start."""

    @abstractmethod
    def go_on(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """Give the command that goes on."""

    def beside(self, place: Path) -> AbstractContextManager[list[Path]]:
        """Keep up what a kill leaves alive, a database's server; give where it keeps its files."""
        return nullcontext([])

    def environment(self, place: Path, url: str) -> dict[str, str]:
        """Give the process's environment."""
        return {**os.environ, "DO_NOT_TRACK": "1"}


class Nip(Player):
    """`nip play`: one iteration's rollouts, durable as in `nip train`."""

    name = "nip"

    def versions(self) -> dict[str, str]:
        """Give nip's commit."""
        return {"nip": commit(), "python": ".".join(map(str, sys.version_info[:3]))}

    def start(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """Write the configuration and play it."""
        settings = {
            "run_name": "beside",
            "run_store": str(place / "runs"),
            "dataset": "families",
            "agents": {
                "_default": {
                    "model_provider": "OpenAI",
                    "model_name": "stub",
                    "base_url": f"{url}/v1",
                    "freeze_agent": True,  # the stub trains nothing, and would be asked
                }
            },
            "nip_protocol": {"max_message_rounds": TURNS, "min_message_rounds": TURNS},
            "rl": {"num_iterations": 1, "rollouts_per_iteration": games, "num_epochs": 1},
            "text_rl": {"test_scheme": "none"},
            "rollouts": {"concurrency": in_flight},
        }
        (place / "config.yaml").write_text(yaml.safe_dump(settings))
        command = [sys.executable, "-m", "nip_cli", "play", str(place / "config.yaml")]
        return [*command, "--out", str(place / "out")]

    def go_on(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """Play the same configuration."""
        return self.start(place, url, games, in_flight)

    def environment(self, place: Path, url: str) -> dict[str, str]:
        """Give the key, too."""
        return {**super().environment(place, url), "OPENAI_API_KEY": "sk-stub"}


class Peer(Player):
    """A project in an environment of its own that scripts/build_peers.sh builds."""

    folder: str
    packages: tuple[str, ...]

    def python(self) -> Path:
        """Give its interpreter."""
        return PEERS / self.folder / "bin" / "python"

    def absent(self) -> str | None:
        """Look whether its environment is there."""
        if self.python().exists():
            return None
        return f"not built: scripts/build_peers.sh {self.folder}"

    def versions(self) -> dict[str, str]:
        """Ask its environment."""
        code = (
            "import json, platform; from importlib.metadata import version; "
            f"print(json.dumps({{p: version(p) for p in {self.packages!r}}} "
            "| {'python': platform.python_version()}))"
        )
        asked = subprocess.run(
            [self.python(), "-c", code], capture_output=True, text=True, check=True
        )
        return dict(json.loads(asked.stdout))

    def environment(self, place: Path, url: str) -> dict[str, str]:
        """Give a path on which the game is; no setting of this environment's own Python."""
        environment = {**super().environment(place, url), "PYTHONPATH": str(GAMES)}
        # A home of its own, so that caches are empty at the start of each run.
        return environment | {"HOME": str(place), "XDG_CACHE_HOME": str(place / "cache")}


class Verifiers(Peer):
    """`vf-eval`, with a harness in its process, and its `--resume`."""

    name, folder, packages = "verifiers", "verifiers", ("verifiers", "httpx", "openai")

    def start(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """Write the configuration and evaluate it."""
        settings = {
            "model": "stub",
            "max_concurrent": in_flight,
            "output_dir": str(place / "out"),
            "push": False,
            "run": {"name": "beside"},
            "client": {"type": "eval", "base_url": f"{url}/v1", "api_key_var": "STUB_API_KEY"},
            "env": {"taskset": {"id": "nine_turns", "games": games}},
        }
        (place / "config.json").write_text(json.dumps(settings))
        return [*self._program(), "@", str(place / "config.json"), "--no-rich"]

    def go_on(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """Resume with the configuration that the run has saved."""
        saved = place / "out" / "beside" / "configs" / "resolved" / "eval.json"
        return [*self._program(), "@", str(saved), "--resume"]

    def _program(self) -> list[str]:
        return [str(self.python().with_name("vf-eval"))]

    def environment(self, place: Path, url: str) -> dict[str, str]:
        """Give a key."""
        return {**super().environment(place, url), "STUB_API_KEY": "sk-stub"}


class Inspect(Peer):
    """`inspect eval` and `inspect eval-retry`."""

    name, folder, packages = "inspect", "inspect", ("inspect-ai", "openai")
    cache = False

    def start(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """Evaluate the task."""
        task = [f"{GAMES / 'nine_turns_task.py'}@nine_turns", "-T", f"games={games}"]
        options = ["-T", f"cache={str(self.cache).lower()}", "--model", "openai-api/stub/stub"]
        return [*self._program("eval"), *task, *options, *self._options(place, in_flight)]

    def go_on(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """Retry the newest log."""
        logs = sorted((place / "logs").glob("*.eval"), key=lambda log: log.stat().st_mtime)
        return [*self._program("eval-retry"), str(logs[-1]), *self._options(place, in_flight)]

    def _program(self, command: str) -> list[str]:
        return [str(self.python().with_name("inspect")), command]

    def _options(self, place: Path, in_flight: int) -> list[str]:
        most = ["--max-connections", str(in_flight), "--max-samples", str(in_flight)]
        return [*most, "--log-dir", str(place / "logs"), "--display", "none"]

    def environment(self, place: Path, url: str) -> dict[str, str]:
        """Give the address and a key."""
        named = {"STUB_API_KEY": "sk-stub", "STUB_BASE_URL": f"{url}/v1"}
        return {**super().environment(place, url), **named}


class InspectCached(Inspect):
    """The same, with the cache of answers that inspect has, which is off unless a task asks."""

    name, cache = "inspect, cache=True", True


class InspectCheckpointed(Inspect):
    """The same with checkpoints after every turn of a sample.

    Inspect keeps them with restic, of a version that it downloads from GitHub at the first use. One
    of that series on the path stands in for it, so that nothing is downloaded meanwhile.
    """

    name = "inspect, --checkpoint=turn:1"
    restic = "0.18"
    """Inspect's version of scripts/build_peers.sh asks for 0.18.1. With 0.14.0 in its place, of
    Debian 12, it wrote checkpoints, and a retry of them waited for ever."""

    def absent(self) -> str | None:
        """Look for restic, too."""
        if shutil.which("restic") is None:
            return super().absent() or f"restic {self.restic} is not on the path"
        there = self._find_version()
        other = f"it asks for restic {self.restic}, and {there} is on the path"
        return super().absent() or (None if there.startswith(f"{self.restic}.") else other)

    def versions(self) -> dict[str, str]:
        """Name restic, too."""
        return {**super().versions(), "restic": self._find_version()}

    def _find_version(self) -> str:
        return self._asked("restic", "version").split()[1]

    def start(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """Lay restic where inspect looks for its own, and evaluate the task."""
        code = "from inspect_ai.util._restic import resolver as r; "
        code += "print(r.cache_path(r._current_platform()))"
        path = Path(self._asked(str(self.python()), "-c", code, **self.environment(place, url)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(str(shutil.which("restic")))
        return super().start(place, url, games, in_flight)

    def _asked(self, *command: str, **environment: str) -> str:
        asked = subprocess.run(
            command, env=environment or None, capture_output=True, text=True, check=True
        )
        return asked.stdout.strip()

    def _options(self, place: Path, in_flight: int) -> list[str]:
        return [*super()._options(place, in_flight), "--checkpoint=turn:1"]


class Dbos(Peer):
    """A program with durable workflows of DBOS; the same command goes on."""

    name, folder, packages = "DBOS, SQLite", "dbos", ("dbos", "httpx", "sqlalchemy")

    def start(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """Play."""
        program = [str(self.python()), str(GAMES / "nine_turns_dbos.py"), url]
        return [*program, str(games), str(in_flight), self.database(place)]

    def go_on(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """Start the same program."""
        return self.start(place, url, games, in_flight)

    def database(self, place: Path) -> str:
        """Give the address of the database that DBOS keeps its state in."""
        return f"sqlite:///{place / 'games.sqlite'}"


class DbosPostgres(Dbos):
    """The same on PostgreSQL, which lives on when the program is killed."""

    name = "DBOS, PostgreSQL"
    address = ""

    def absent(self) -> str | None:
        """Look for PostgreSQL, too."""
        try:
            find_binaries()
        except SettingsError as error:
            return str(error)
        return super().absent()

    @contextmanager
    def beside(self, place: Path) -> Iterator[list[Path]]:
        """Start a server, empty, with the settings that it comes with."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o711)  # it runs as another user if this is root
            servers: list[subprocess.Popen[bytes]] = []

            def start(_: str, command: list[str], environment: dict[str, str], **user: Any) -> Any:
                servers.append(
                    subprocess.Popen(
                        command,
                        env=environment,
                        cwd="/",
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        **user,
                    )
                )
                return servers[-1]

            try:
                address = start_postgres(Path(folder) / "postgres", start)
                self.address = address.replace("+asyncpg", "")
                yield [Path(folder) / "postgres" / "data"]
            finally:
                for server in servers:
                    server.terminate()
                    server.wait()

    def database(self, place: Path) -> str:
        """Give the server's address."""
        return self.address


PLAYERS: tuple[Player, ...] = (
    Nip(),
    Verifiers(),
    Inspect(),
    InspectCached(),
    InspectCheckpointed(),
    Dbos(),
    DbosPostgres(),
)
