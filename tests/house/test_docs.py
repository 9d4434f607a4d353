"""The pages for people who change nip name files that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`((?:[\w-]+/)+(?:[\w.-]+\.(?:py|jinja|yaml|toml))?)`")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_file_that_a_page_names_is_there(page):
    names = NAMED.findall((ROOT / page).read_text(encoding="utf-8"))
    assert len(names) > 15
    missing = [
        name
        for name in names
        if not any((ROOT / house / name).exists() for house in (".", "nip_core", "lm_server"))
    ]
    assert not missing


def test_twelve_changes_have_a_place():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("## Where do I")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| (?:a|an) ", table, re.MULTILINE)) == 12
