"""The public surface is the one of the seed pages: names, parameters, defaults, coroutines.

What the pages say stands in seed_surface.json, so that the test also runs without them; where they
are, it is read from them again and compared. To write it anew: ``python test_seed_surface.py``.
"""

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nip_by_hand.agents
import nip_core.parameters
from nip_by_hand.agents import (
    CodeValidationProtocolHandler,
    ExperimentSettings,
    OpenAiSharedModelGroup,
    OpenAiWholeAgent,
)
from nip_core.parameters import load_parameters

HERE = Path(__file__).parent
EXTRACT = HERE / "seed_surface.json"
PAGES = HERE.parents[4] / "shared" / "spec" / "seeds"
NUMBERS = ("000", "001", "002")
NOT_OURS = {
    "Any",
    "Annotated",
    "FineTuningJob",
    "Iterable",
    "Literal",
    "None",
    "TimeoutError",
    "_ScalarType_co",
}


def read_page(text):
    """Class, signatures and attributes of a page as plain values."""
    # Of one page the text has lost a line's end before a name.
    text = re.sub(r"\.(?=[a-z][a-z_]*$)", ".\n", text, flags=re.MULTILINE)
    lines = [re.sub(r"^- ", "", line.strip()) for line in text.splitlines()]
    signatures = [found for line in lines if (found := _signature(line))]
    own, *methods = signatures
    start, end = lines.index("Attributes"), lines.index("Methods")
    return {
        "class": own["name"],
        "methods": {m.pop("name"): m for m in methods},
        "attributes": [line for line in lines[start:end] if re.fullmatch(r"[a-z][a-z_]*", line)],
        "errors": sorted(set(re.findall(r"\b[A-Z]\w*Error\b", text))),
    }


def _signature(line):
    found = re.fullmatch(
        r"(?P<kind>(?:class |abstract |async )*)(?P<name>[\w.]+)\((?P<rest>.*)\[source\]#", line
    )
    if found is None:
        return None
    depth, rest = 1, found["rest"]
    for at, letter in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if not depth:
            break
    arguments = ast.parse(f"def f({rest[:at]}): ...").body[0].args
    missing = len(arguments.args) - len(arguments.defaults)
    return {
        "name": found["name"],
        "abstract": "abstract " in found["kind"],
        "async": "async " in found["kind"],
        "returns": rest[at + 1 :].replace("→", "").strip() or None,
        "parameters": [
            {
                "name": argument.arg,
                "annotation": ast.unparse(argument.annotation),
                "default": ast.unparse(arguments.defaults[i - missing]) if i >= missing else None,
            }
            for i, argument in enumerate(arguments.args)
        ],
    }


def read_pages():
    return {n: read_page(next(PAGES.glob(f"{n}*")).read_text()) for n in NUMBERS}


SURFACE = json.loads(EXTRACT.read_text()) if EXTRACT.exists() else {}
METHODS = [
    pytest.param(page["class"].rpartition(".")[2], name, said, id=f"{number}-{name}")
    for number, page in SURFACE.items()
    for name, said in page["methods"].items()
]


@pytest.mark.skipif(not PAGES.exists(), reason="the seed pages are not here")
def test_the_extract_says_what_the_pages_say():
    assert read_pages() == SURFACE


def test_the_extract_holds_whole_pages():
    counts = {n: (len(p["methods"]), len(p["attributes"])) for n, p in SURFACE.items()}
    assert counts == {"000": (19, 10), "001": (13, 6), "002": (11, 23)}


@pytest.mark.parametrize(("owner", "name", "said"), METHODS)
def test_a_method_has_the_signature_of_the_page(owner, name, said):
    method = inspect.getattr_static(getattr(nip_by_hand.agents, owner), name)
    ours = [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
    assert [p.name for p in ours] == [p["name"] for p in said["parameters"]]
    for mine, theirs in zip(ours, said["parameters"], strict=True):
        wanted = theirs["default"]
        default = inspect.Parameter.empty if wanted is None else ast.literal_eval(wanted)
        assert mine.default == default, mine.name
        assert mine.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert inspect.iscoroutinefunction(method) == said["async"]
    assert getattr(method, "__isabstractmethod__", False) == said["abstract"]


@pytest.mark.parametrize("page", SURFACE.values(), ids=SURFACE)
def test_the_types_of_the_signatures_and_the_errors_can_be_imported(page):
    texts = [p["annotation"] for m in page["methods"].values() for p in m["parameters"]]
    texts += [m["returns"] or "" for m in page["methods"].values()]
    named = {word for text in texts for word in re.findall(r"\b_?[A-Z]\w+", text)}
    missing = [
        name
        for name in sorted({*named, *page["errors"]} - NOT_OURS)
        if not hasattr(nip_by_hand.agents, name) and not hasattr(nip_core.parameters, name)
    ]
    assert missing == []


def test_the_attributes_of_the_pages_are_there():
    parameters = load_parameters(
        {"run_name": "a", "dataset": "families", "agents": {"_default": {"use_dummy_api": True}}}
    )
    handler, settings = CodeValidationProtocolHandler(parameters), ExperimentSettings()
    agent = OpenAiWholeAgent(parameters, settings, "prover", handler)
    group = OpenAiSharedModelGroup(parameters, settings, handler, {"prover": agent}, "prover")
    for number, thing in (("000", group), ("001", group), ("002", agent)):
        for name in SURFACE[number]["attributes"]:
            inspect.getattr_static(thing, name)  # raises AttributeError


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, nip_by_hand.agents; "
        "print(sorted({'torch', 'openai', 'nip_core.stages', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


if __name__ == "__main__":
    EXTRACT.write_text(json.dumps(read_pages(), indent=1, ensure_ascii=False) + "\n")
