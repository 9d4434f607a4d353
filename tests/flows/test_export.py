"""`nip export` says in a line what is wrong, before anything is written."""

import sys
from pathlib import Path

import pytest

from nip_bridges.commands.export import export
from nip_core import how_to_install
from nip_core.errors import SettingsError


@pytest.fixture
def runs(tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "run.json").write_text("{}")
    return tmp_path / "runs"


def said(**changes) -> str:
    with pytest.raises(SettingsError) as caught:
        export(**{"run": "mine", "form": "inspect", "directory": Path("none"), **changes})
    assert not Path("none").exists()
    return str(caught.value)


def test_another_form_run_or_store_is_refused(runs):
    assert said(form="docx", run_store=str(runs)) == "--to 'docx': use inspect or peft"
    assert "there are mine" in said(run="others", run_store=str(runs))
    assert "no such directory" in said(run_store=str(runs / "nowhere"))


def test_without_inspect_ai_it_says_what_to_install(runs, monkeypatch):
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("inspect_ai", "nip_inspect"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    assert said(run_store=str(runs)) == (
        f"--to inspect: needs the package inspect_ai: {how_to_install('inspect')}"
    )
