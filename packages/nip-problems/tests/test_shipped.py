"""The data that ships: the very bytes that were built. That a build gives them: tests/factory."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from nip_core.models import BUNDLED, resolve_model
from nip_core.scenarios import find_scenario

TINY = BUNDLED["tiny"]
DIGESTS = {
    "families/test.parquet": "72acef1196ce4c33",
    "families/train.parquet": "c9a79e8192923d8c",
    "families/validation.parquet": "8ff4ff5cff10bb7a",
    "problems/test.parquet": "c5fca0695384ef8b",
    "problems/train.parquet": "37655cda7ec1ec1b",
    "problems/validation.parquet": "460448824041da17",
    "tiny/chat_template.jinja": "d3a4ce5c170cc032",
    "tiny/config.json": "678284d65e5cff0a",
    "tiny/generation_config.json": "534ded4c6a9d2ce3",
    "tiny/model.safetensors": "ecd95b1e48627f3a",
    "tiny/tokenizer.json": "dd30bfc019506fe3",
    "tiny/tokenizer_config.json": "9b9143e49d97f2cd",
}
"""How the SHA-256 of each file begins. After a new build, write down those of the new files."""


def test_what_ships_is_byte_for_byte_what_was_built() -> None:
    bundled = find_scenario("code_validation").bundled.values()
    shipped = [file for place in bundled for file in place.glob("*.parquet")] + [*TINY.iterdir()]
    records = {"README.md", "training.json", "evaluation.json"}  # of how it was built
    assert {
        f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in shipped
        if path.name not in records
    } == DIGESTS


def test_the_model_was_made_for_these_problems_and_templates() -> None:
    from factory.tiny.build import fingerprint

    for name in ("training.json", "evaluation.json"):
        assert json.loads((TINY / name).read_text())["made_for"] == fingerprint(), (
            "the problem set or a short template changed after the model was trained: "
            "build the model again"
        )


def test_the_files_of_the_model_are_small_and_safetensors_only() -> None:
    names = [path for path in TINY.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in names) <= 10 * 1024 * 1024
    assert {path.suffix for path in names} == {".json", ".jinja", ".md", ".safetensors"}


def test_a_bundled_name_is_a_directory_and_any_other_name_is_left_alone() -> None:
    assert resolve_model("tiny") == str(TINY)
    assert (Path(resolve_model("tiny")) / "config.json").is_file()
    assert resolve_model("some/model") == "some/model"
    assert resolve_model("./tiny") == "./tiny"


def test_resolving_a_name_loads_no_torch() -> None:
    code = "import sys, nip_core.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
