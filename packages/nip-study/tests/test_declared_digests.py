"""A declaration holds fast what figures depend on: their code, and the files that settings name."""

import shutil
from pathlib import Path

import pytest

import nip_core
import nip_study
from nip_core.errors import CorruptionError
from nip_study.commands.sweep import sweep as sweep_command
from nip_study.declare.declaration import read_plan
from nip_study.declare.declared_digests import analysis_digest, file_digests, settings_digests
from nip_study.plan.swept_runs import read_sweep
from nip_study.recompute import recompute_results

CORE, STUDY = (Path(package.__file__).parent for package in (nip_core, nip_study))
RESULTS = Path(__file__).parents[3] / "docs" / "results" / "asking"


def test_the_digest_of_the_analysis_is_of_each_file_that_makes_a_figure(tmp_path):
    files = shutil.ignore_patterns("__pycache__")
    shutil.copytree(STUDY, tmp_path / "study", ignore=files)
    for room in ("evaluation", "attack_figures"):
        shutil.copytree(CORE / room, tmp_path / room, ignore=files)

    def digest():
        return analysis_digest(tmp_path / "study", tmp_path)

    whole = digest()
    assert whole == analysis_digest()
    digests = {whole}
    for name in (
        "attack_figures/losses.py",
        "evaluation/any_of.py",
        "evaluation/spread.py",
        "evaluation/statistics/clustered.py",
        "study/parts/two_way.py",
        "study/declare/hypotheses.py",
        "study/compute/outcomes.py",
        "study/results.py",
    ):
        assert (tmp_path / name).is_file()
        with (tmp_path / name).open("a") as file:
            file.write("# changed\n")
        digests.add(digest())
    assert len(digests) == 9
    # The place of the code, a file that is no code, and a command are no part of it.
    last = digest()
    (tmp_path / "evaluation" / "page.css").write_text("")
    (tmp_path / "study" / "commands" / "more.py").write_text("")
    assert digest() == last


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


def test_files_of_a_sweep_have_one_spelling_in_its_plan_and_in_its_own_command(monkeypatch):
    """A plan names its sweep as ../sweeps/…; with that in the paths, all runs with files differed."""
    monkeypatch.chdir(RESULTS.parents[2])
    places = Path("deployments/plans"), Path("deployments/sweeps")
    declared, played = (place / "unanswered_smollm2.yaml" for place in places)
    plan, sweep = read_plan(declared).sweep, read_sweep(played)
    assert settings_digests(plan) == settings_digests(sweep)
    assert file_digests(plan) == file_digests(sweep)
