"""The page of settings says what the settings are."""

from pathlib import Path

from nip_core.parameters.hyper_parameters import HyperParameters
from nip_core.parameters.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == reference()


def test_every_setting_has_a_meaning():
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    assert all(row.rstrip("| ").rpartition("|")[2].strip() for row in rows)
    assert all(
        field.description
        for name, field in HyperParameters.model_fields.items()
        if field.is_required()
    )
