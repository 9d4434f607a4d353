"""A recipe for a model of another size: its shape, and that it learns."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from factory.tiny.build import load, make_model
from factory.tiny.recipes import RECIPES
from factory.tiny.sizes import count_parameters, parse_parameters, resize
from nip_core.models import BUNDLED


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("size", ["1M", "4M", "16M", "64M", "250M"])
def test_a_size_is_met_within_an_eighth(recipe, size):
    asked = parse_parameters(size)
    shaped = resize(RECIPES[recipe], asked)
    assert math.isclose(count_parameters(shaped), asked, rel_tol=0.125)
    assert shaped.hidden % shaped.heads == 0 and shaped.heads > shaped.look_back
    assert shaped.matrix_lr < RECIPES[recipe].matrix_lr or shaped.hidden == 128


def test_the_bundled_model_is_the_recipe_at_a_million():
    assert resize(RECIPES["code_validation"], 10**6) == RECIPES["code_validation"]


@pytest.mark.parametrize(
    ("recipe", "bundled"), [("code_validation", "tiny"), ("reading", "tiny-reading")]
)
def test_parameters_are_counted_as_the_model_has_them(recipe, bundled):
    shaped = resize(RECIPES[recipe], 4 * 10**6)
    model = make_model(shaped, load(BUNDLED[bundled])[1])
    assert count_parameters(shaped) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--parameters", "many"], "'many' is no number of parameters: write it as 4M or 250M"),
        (["--parameters", "8B"], "from 500K to 300M"),
        (["--device", "cuda:9"], "--device cuda:9"),
    ],
)
def test_what_cannot_be_built_is_refused_at_once(tmp_path, options, said):
    out = tmp_path / "model"
    command = [sys.executable, "-m", "factory.tiny.build", "--out", str(out), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and said in ended.stderr and not out.exists()


@pytest.mark.learning
def test_a_larger_one_is_built_and_measured(tmp_path: Path):
    command = [sys.executable, "-m", "factory.tiny.build", "--out", str(tmp_path)]
    command += ["--parameters", "4M", "--steps", "12", "--batch-size", "8"]
    subprocess.run(command, check=True)
    facts = json.loads((tmp_path / "training.json").read_text())
    assert math.isclose(facts["parameters"], 4e6, rel_tol=0.125)
    assert facts["recipe"]["steps"] == 12
    assert "224" in (tmp_path / "README.md").read_text()
