"""The page of settings says what the settings are; what each means, it says itself."""

import re
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from nip_core.parameters import HyperParameters
from nip_core.parameters.basis.base import Parameters, groups_in
from nip_core.parameters.basis.not_for_text import NOT_FOR_TEXT, OTHERWISE, is_for_ancestor
from nip_core.parameters.basis.update_schedule import SCHEDULES

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

from settings_page import (  # noqa: E402
    describe_setting,
    page_of_original_settings,
    page_of_settings,
)

DOCS = ROOT / "docs"


def all_groups(kind: type[Parameters]) -> list[type[Parameters]]:
    inner = [k for f in kind.model_fields.values() for k in groups_in(f.annotation)]
    return [kind, *(group for k in inner for group in all_groups(k))]


GROUPS = dict.fromkeys(all_groups(HyperParameters))
FIELDS = [
    (kind, name)
    for kind in GROUPS
    for name, field in kind.model_fields.items()
    if not groups_in(field.annotation)
]


def limits(annotation: Any, metadata: tuple[Any, ...] = ()) -> list[str]:
    """The bounds and the choices in an annotation, as they are written."""
    found = [
        f"{getattr(rule, name):.10g}"
        for rule in (*metadata, *(r for m in metadata for r in getattr(m, "metadata", ())))
        for name in ("ge", "gt", "le", "lt")
        if isinstance(getattr(rule, name, None), int | float)
    ]
    if get_origin(annotation) is Literal:
        return [*found, *map(str, get_args(annotation))]
    if get_origin(annotation) is Annotated:
        annotation, *rules = get_args(annotation)
        return [*found, *limits(annotation, tuple(rules))]
    return [*found, *(limit for part in get_args(annotation) for limit in limits(part))]


def test_the_pages_are_up_to_date():
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == page_of_settings()
    assert (DOCS / "settings-original.md").read_text(
        encoding="utf-8"
    ) == page_of_original_settings()


@cache
def make_pages() -> tuple[str, str]:
    return page_of_settings(), page_of_original_settings()


# LrFactors are what agent_lr_factor may hold.
@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, n in FIELDS if k.__name__ != "LrFactors"])
def test_every_setting_is_on_one_page_and_the_one_where_people_look(kind, name):
    pages = make_pages()
    on = [f"`{name}`" in pages[0], bool(re.search(rf"`[\w.<>]*{name}`", pages[1]))]
    for_ancestor = is_for_ancestor(kind.__name__, name)
    assert on[for_ancestor]
    keeps = describe_setting(kind, name).startswith("Keeps its default")
    assert keeps == (name in NOT_FOR_TEXT.get(kind.__name__, {})), "see NOT_FOR_TEXT"


def test_what_is_set_otherwise_are_settings():
    names = {kind.__name__: kind.model_fields for kind in GROUPS}
    for kind, table in OTHERWISE.items():
        assert table and set(table) <= set(names[kind])


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_every_setting_says_what_it_means_and_which_values_it_takes(kind, name):
    field = kind.model_fields[name]
    meaning = describe_setting(kind, name).replace(",", "")
    assert meaning.endswith((".", ".)"))
    for limit in limits(field.annotation, tuple(field.metadata)):
        assert re.search(rf"(?<![\d.]){re.escape(limit)}(?!\d)", meaning), limit


def test_bounds_and_choices_are_found_where_there_are_some():
    found = {(kind.__name__, name): kind.model_fields[name] for kind, name in FIELDS}
    for setting, expected in {
        ("PureTextAgentParameters", "top_p"): ["0", "1"],
        ("PureTextAgentParameters", "lora_rank"): ["1", "256"],
        ("TextRlParameters", "transcript_format"): ["yaml", "json"],
    }.items():
        field = found[setting]
        assert limits(field.annotation, tuple(field.metadata)) == expected


def test_every_group_and_every_setting_without_a_meaning_has_its_place_on_the_page():
    page = page_of_settings() + page_of_original_settings()
    assert len(GROUPS) > 18 and all(kind.__doc__ for kind in GROUPS)
    # Outside of a code span <name> is a tag, which pages leave out.
    for title in ("Top level", "`agents.<name>`", "`agents.<name>` (random)", "`rl`", "`base_run`"):
        assert f"\n## {title}\n" in page
    prose = re.sub(r"``.*?``|`[^`]*`", "", page, flags=re.DOTALL)
    assert re.findall(r"<\w+>", prose) == []
    for name in (*SCHEDULES, *(name for table in NOT_FOR_TEXT.values() for name in table)):
        assert f"{name}`" in page
