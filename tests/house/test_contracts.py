"""The import contracts of `make check` can fail: each is broken here once, and says where."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from houses import HOUSES, ROOT

BROKEN = {
    # contract: files, and what they must not import
    "The distributions": (
        ("tasks/secrets.py", "nip_prefect.flows.form"),
        ("nip_base/version.py", "nip_core.errors"),
        ("nip_lm_server/server.py", "nip_core.errors"),
        ("nip_core/tolerance.py", "nip_study.results"),
        ("nip_study/results.py", "nip_view.app"),
        ("nip_games/graphs.py", "nip_bridges.hub.client"),
        ("nip_sandbox/sandbox_wire.py", "nip_lm_server.client"),
        ("flows/form.py", "nip_verifiers.scoring"),
    ),
    "nip_verifiers is published by itself": (
        ("nip_verifiers/scoring.py", "nip_inspect.scoring"),
        ("nip_verifiers/scoring.py", "nip_prefect.flows.form"),
    ),
    "Without Prefect": (
        ("nip_core/tolerance.py", "prefect"),
        ("nip_base/version.py", "prefect"),
    ),
    "The library door": (
        ("nip_core/library/games.py", "nip_core.session.prepare"),
        ("nip_core/rollouts/storage/table_rows.py", "nip_core.run_store.store"),
        ("nip_core/rollouts/client/completions.py", "aiohttp"),
    ),
    "factory makes what is shipped": (
        ("nip_core/tolerance.py", "factory.tiny.cases"),
        ("flows/form.py", "factory.tiny.cases"),
    ),
    "nip_lm_server has one door": (
        ("nip_core/tolerance.py", "nip_lm_server.launch"),
        ("tasks/secrets.py", "nip_lm_server.state.models"),
    ),
    "No module outside of scenarios knows one": (
        ("nip_core/tolerance.py", "nip_games.code_validation"),
        ("nip_core/game/chat_format.py", "nip_games.code_validation.buggy_apps"),
    ),
    "The floors of nip_core": (
        ("nip_core/tolerance.py", "nip_core.session.session"),
        ("nip_core/run_store/documents.py", "nip_core.evaluation.metrics"),
    ),
    "The floors of the stages": (
        ("nip_core/stages/served.py", "nip_core.stages.swapping"),
        ("nip_core/stages/playing.py", "nip_core.stages.agenda"),
    ),
    "The floors of lm_server": (
        ("nip_lm_server/engines/embedded/decoding/kv_cache.py", "nip_lm_server.training.job"),
        ("nip_lm_server/state/files.py", "nip_lm_server.serving.pool"),
    ),
    "The floors of nip_base": (("nip_base/version.py", "nip_base.wire"),),
}

FOR_TYPES = {
    # The same, imported for type checkers alone: a reader follows it as well.
    "The floors of nip_core": (
        ("nip_core/protocols/scales.py", "nip_core.parameters.blocks.game"),
    ),
    "The distributions": (("nip_core/nearest.py", "nip_prefect.flows.form"),),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """What the contracts say of a copy of the sources with all of these imports, in one run."""
    copy = tmp_path_factory.mktemp("house")
    for name, place in {**HOUSES, "nip_prefect": ROOT / "nip_prefect"}.items():
        shutil.copytree(place, copy / name, symlinks=True, ignore=_all_but_code)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for imports in BROKEN.values():
        for file, module in imports:
            with (copy / file).open("a") as source:
                source.write(f"\nimport {module}\n")
    for imports in FOR_TYPES.values():
        for file, module in imports:
            with (copy / file).open("a") as source:
                source.write(
                    f"\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {module}\n"
                )
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    return " ".join(done.stdout.split())


def _all_but_code(folder, names):
    return [
        name
        for name in names
        if Path(name).suffix not in (".py", "") or name == "__pycache__" or name == "data"
    ]


@pytest.mark.parametrize("contract", BROKEN)
def test_a_forbidden_import_breaks_its_contract_which_names_it(verdicts, contract):
    kept_or_broken = verdicts.partition("Broken contracts")[0]
    sentence = kept_or_broken[kept_or_broken.index(contract) :]
    assert sentence.find("BROKEN") != -1
    assert "KEPT" not in sentence[: sentence.index("BROKEN")]
    for file, module in (*BROKEN[contract], *FOR_TYPES.get(contract, ())):
        importer = file.removesuffix(".py").replace("/", ".")
        for folder in ("flows", "tasks"):
            importer = importer.replace(f"{folder}.", f"nip_prefect.{folder}.")
        assert f"{importer} -> {module}" in verdicts, importer


def test_every_contract_has_an_example():
    text = (ROOT / "pyproject.toml").read_text()
    names = [line for line in text.splitlines() if line.startswith('name = "')]
    contracts = names[1:]  # the first is the project's
    assert len(contracts) == len(BROKEN)
    assert all(any(start in line for line in contracts) for start in BROKEN)
