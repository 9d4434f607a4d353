"""Set before anything imports Prefect: no telemetry, no pages of logs around a failure."""

import functools
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import certifi
import pytest
from hypothesis import settings
from tiers import leave_out_long
from tiers import pytest_terminal_summary as pytest_terminal_summary

if TYPE_CHECKING:
    from _typeshed import HasFileno

os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Tests run beside each other: threads of theirs would wait for processors, and how many compute
# would differ from one run to the next, and with it last bits.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hundreds of processes are started, and each would compile all modules for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def _one_certificate() -> str:
    """The first certificate of certifi's."""
    end = "-----END CERTIFICATE-----"
    text = certifi.contents()
    return text[text.index("-----BEGIN") : text.index(end) + len(end)] + "\n"


# Every client reads all certificates, which takes a tenth of a small run; nothing here speaks TLS.
_certificate = tempfile.NamedTemporaryFile("w", suffix=".pem")  # noqa: SIM115 (while tests run)
_certificate.write(_one_certificate())
_certificate.flush()
os.environ["SSL_CERT_FILE"] = _certificate.name


def _not_synced(file: "int | HasFileno") -> None:
    """Only look whether the file is open, as `os.fsync` would, too."""
    os.fstat(file if isinstance(file, int) else file.fileno())


# What tests write need not outlive this machine, and waiting for its disk is a tenth of a small run.
# The processes that tests start do wait for it.
os.fsync = _not_synced


@functools.wraps(gc.unfreeze)
def _not_unfrozen() -> None:
    """What was frozen stays so: one search of all that is imported takes most of a second.

    It would be made at every end of an engine, and by the collector after every session.
    """


gc.unfreeze = _not_unfrozen

# A slow machine is no failure; `pytest-timeout` bounds what hangs.
settings.register_profile("nip", deadline=None)
settings.load_profile("nip")

LONG_TIERS = (
    "tests/factory",
    "tests/flows/long",
    "packages/nip-lm-server/tests/long",
    "packages/nip-study/tests/long",
)
"""They take long: what ships is built again, the server trains and generates with real models."""

TIERS = (
    # They need more than `make install`.
    *("tests/verifiers", "tests/gpu", "tests/cluster", "tests/docs", "tests/real"),
    "tests/reasoning_gym",
    *(f"packages/nip-lm-server/tests/{tier}" for tier in ("engines", "tinker", "clients")),
    *(f"packages/nip-by-hand/tests/{tier}" for tier in ("art", "nat")),
    *(f"packages/nip-bridges/tests/{tier}" for tier in ("inspect", "trackers")),
    "packages/nip-judges/tests/libraries",
    "packages/nip-view/tests/browser",
    *LONG_TIERS,
)
"""Folders that run on their own: `make test-engines`, ..."""


@pytest.fixture
def server_in_thread() -> Iterator[None]:
    """The lm_servers of sessions that begin in this process run in it, too."""
    from server_here import servers_here

    with servers_here():
        yield


SLOW_FILES = (
    # They wait more than they compute.
    *("test_seen.py", "test_two_runners.py", "test_secrets.py", "test_run_in_bucket.py"),
    # With all examples, minutes each.
    *("test_kills.py", "test_attack.py", "test_attack_course.py", "test_commands.py"),
    *("test_kill_matrix.py", "test_rerun.py", "test_train.py", "test_cli.py", "test_jobs.py"),
    *("test_stopping.py", "test_frozen_runs.py", "test_base_run.py", "test_solutions.py"),
    *("test_tiny.py", "test_faults.py", "test_determinism.py", "test_promotion.py"),
    *("test_trouble.py", "test_files.py", "test_matrix.py", "test_prompts.py", "test_parsing.py"),
    *("test_push_and_pull.py", "test_begin_with.py", "test_slow_servers.py", "test_results.py"),
    "test_judge_sweep.py",
    *(
        "test_build_problems.py",
        "test_conformance.py",
        "test_resume.py",
        "test_declared_digests.py",
    ),
    # Of the tiers.
    *("test_sweep_whole.py", "test_league.py", "test_launch.py"),
    *("test_training.py", "test_problems.py", "test_embedded_stream.py", "test_families.py"),
    *("test_guided.py", "test_tiny_recipe.py", "test_pause.py", "test_learning_quick.py"),
)
"""Begun first, so that no process is left alone with one of them in the end."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage while all is imported, which is a quarter of the time that this takes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Files that need the same are played by few processes."""
    from scheduling import make_scheduler

    return make_scheduler(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow files first; the order is otherwise kept."""
    leave_out_long(config, items, LONG_TIERS)
    order = {name: place for place, name in enumerate(SLOW_FILES)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def pytest_collection_finish() -> None:
    """What has been imported and collected stays; the garbage collector need not look at it.

    Nor at the end, where that would take seconds of each process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave a tier out, unless it was asked for by its path."""
    here = Path(__file__).parent
    if collection_path not in [here / tier for tier in TIERS]:
        return None
    asked = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(path.is_relative_to(collection_path) for path in asked) else True
