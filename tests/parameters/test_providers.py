"""One provider, one row: the table says all that differs, and the page shows the table."""

import re
from pathlib import Path
from typing import get_args

import pytest

from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters
from nip_core.parameters.services.dialects import DIALECTS, ApiDialect
from nip_core.parameters.services.providers import PROVIDERS, ProviderName
from nip_core.servers.endpoints import find_group_endpoints, list_key_variables

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")
REMOTE = [name for name, row in PROVIDERS.items() if row.address is not None]


def run(provider, *changes):
    settings = ["model_name=some/model", f"model_provider={provider}", "freeze_agent=true"]
    settings.append("chat_format=alternating")  # which all take
    agents = [f"agents._default.{setting}" for setting in settings]
    return load_parameters(
        "deterministic", ["agents._default.use_dummy_api=false", *agents, *changes]
    )


def rows_of_page(heading):
    text = PAGE.partition(f"## {heading}")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")][1:]
    return {row[0].strip(" `"): [cell.strip(" `") for cell in row[1:]] for row in rows}


def test_names_and_rows_are_the_same_ones():
    assert set(get_args(ProviderName)) == set(PROVIDERS)
    assert set(get_args(ApiDialect)) == {"auto", *DIALECTS}
    assert all(row.dialect in DIALECTS for row in PROVIDERS.values())


def test_the_page_has_each_provider_with_its_address_and_key():
    shown = rows_of_page("Who serves a model")
    assert set(shown) == set(PROVIDERS) and set(rows_of_page("What each API takes")) == set(
        DIALECTS
    )
    for name, row in PROVIDERS.items():
        address, variable, key, dialect, trains = shown[name]
        assert (key, dialect) == (row.key_variable, row.dialect)
        assert (trains == "yes") == (row.training is not None)
        if row.address is not None:
            assert (address, variable) == (row.address, row.address_variable)


@pytest.mark.parametrize("provider", REMOTE)
def test_a_provider_is_asked_at_its_address_with_its_key(provider):
    row, parameters = PROVIDERS[provider], run(provider)
    assert list_key_variables(parameters) == [row.key_variable]
    at = find_group_endpoints(parameters, "verifier", {row.key_variable: "a key"})
    assert at is not None
    assert (at.play.base_url, at.play.api_key) == (row.address + row.play_path, "a key")
    moved = {row.key_variable: "a key", row.address_variable: "https://elsewhere.example/v1/"}
    there = find_group_endpoints(parameters, "verifier", moved)
    assert there is not None and there.control.base_url == "https://elsewhere.example/v1"
    assert there.play.base_url == there.control.base_url + row.play_path
    with pytest.raises(SettingsError, match=row.key_variable):
        find_group_endpoints(parameters, "verifier", {})


@pytest.mark.parametrize("provider", [name for name, row in PROVIDERS.items() if not row.training])
def test_a_model_of_a_provider_that_only_plays_is_frozen_or_refused(provider):
    assert run(provider).trainable_groups == ()
    with pytest.raises(SettingsError, match=f"{provider} can't fine-tune; set freeze_agent: true"):
        run(provider, "agents._default.freeze_agent=false")


def test_a_provider_is_named_in_two_files_of_code_at_most():
    code = [p for house in ("nip_core", "flows", "tasks") for p in (ROOT / house).rglob("*.py")]
    for name in set(REMOTE) - {"OpenAI"}:  # whose protocol all speak
        # In quotes or as its variables and hosts are spelt, as "together" is a word.
        spelt = re.compile(
            rf"[\"'`]{name}[\"'`]|{name.upper()}_(API|BASE)|{name.lower()}\.(ai|xyz)"
        )
        found = [p for p in code if spelt.search(p.read_text("utf-8"))]
        assert len(found) <= 2, found
