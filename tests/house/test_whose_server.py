"""Who serves and trains a model is known to few: the others ask an object for what they need."""

import ast
import re
from pathlib import Path

from houses import list_nodes, list_sources, read_source

ROOT = Path(__file__).parents[2]
CODE = {
    path.relative_to(ROOT).as_posix(): read_source(path)
    for path in list_sources("nip_core", "nip_cli", "nip_study", "nip_view", "flows", "tasks")
}
# Where the questions are answered.
ANSWERS = ("nip_core/parameters/services/providers.py", "nip_core/parameters/derived/hosting.py")
WHOSE = re.compile(
    r"\b(is_lm_server|starts_server|is_launched|speaks_nip|uses_own_server|is_deterministic)\b"
)


def test_few_ask_whose_server_it_is():
    core = [name for name in CODE if name.startswith("nip_core/") and name not in ANSWERS]
    asking = [name for name in core if WHOSE.search(CODE[name])]
    assert len(asking) <= 6, asking


def test_a_back_end_is_named_where_it_is_opened():
    naming = {name for name, text in CODE.items() if "OpenAIBackend" in text}
    assert naming and all(name.startswith("nip_core/jobs/") for name in naming), naming


def test_no_setting_is_compared_with_the_name_of_a_provider():
    compared = [
        f"{name}:{node.lineno}"
        for name in CODE
        for node in list_nodes(ROOT / name, ast.Compare)
        if any(isinstance(n, ast.Attribute) and n.attr == "model_provider" for n in ast.walk(node))
        and any(isinstance(n, ast.Constant) and n.value != ":" for n in ast.walk(node))
    ]
    assert not compared
