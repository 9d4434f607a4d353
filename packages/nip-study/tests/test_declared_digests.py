"""A declaration holds fast what figures depend on: their code, and the files that settings name."""

import shutil
from pathlib import Path

import pytest

import nip_core
from nip_core.errors import CorruptionError
from nip_study.commands.sweep import sweep as sweep_command
from nip_study.declare.declared_digests import analysis_digest
from nip_study.recompute import recompute_results

PACKAGE = Path(nip_core.__file__).parent
RESULTS = Path(__file__).parents[3] / "docs" / "results" / "asking"


def test_the_digest_of_the_analysis_is_of_each_file_that_makes_a_figure(tmp_path):
    files = shutil.ignore_patterns("__pycache__")
    for room in ("sweep", "evaluation", "attack_figures"):
        shutil.copytree(PACKAGE / room, tmp_path / room, ignore=files)
    whole = analysis_digest(tmp_path)
    assert whole == analysis_digest()
    digests = {whole}
    for name in (
        "attack_figures/losses.py",
        "evaluation/any_of.py",
        "evaluation/spread.py",
        "evaluation/statistics/two_way.py",
        "sweep/hypotheses.py",
        "sweep/outcomes.py",
        "sweep/results.py",
    ):
        with (tmp_path / name).open("a") as file:
            file.write("# changed\n")
        digests.add(analysis_digest(tmp_path))
    assert len(digests) == 8
    # Where it lies, and what is not code, is no part of it.
    before = analysis_digest(tmp_path)
    (tmp_path / "evaluation" / "page.css").write_text("")
    assert analysis_digest(tmp_path) == before


def test_who_computes_results_again_is_told_that_the_code_is_not_the_declared_one(capsys):
    sweep_command(recompute=RESULTS)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(
        "analysis code other than declared: figures are those of the code at hand"
    )
    assert "byte for byte" in second


@pytest.mark.long
def test_where_results_are_not_the_same_the_code_may_be_why(tmp_path):
    # On the page it would be another page.
    shutil.copytree(RESULTS, tmp_path / "results")
    page = tmp_path / "results" / "README.md"
    page.write_text(page.read_text().replace("44,800", "44,801"))
    with pytest.raises(CorruptionError, match=r"\(analysis code other than declared\)$"):
        recompute_results(tmp_path / "results")
