"""Each file has one room, each document a type, each name one thing: counted over the sources."""

import ast
import collections
import re
from pathlib import Path

import pytest
from houses import HOUSES, list_nodes, list_sources, parse_source, read_source

ROOT = Path(__file__).parents[2]
STAGES = ROOT / "nip_core" / "stages"
SHARED_NAMES = {"base.py", "errors.py", "__init__.py", "__main__.py"}
"""Names of files that every room may have."""
UNTYPED = re.compile(r"\b(dict|Mapping|MutableMapping)\[str, (Any|object)\]")
RELATIVE = re.compile(r"\b(that|which|whoever|whatever)\b", re.IGNORECASE)


def nodes(house, *kinds):
    return [node for path in list_sources(house) for node in list_nodes(path, *kinds)]


def functions(house):
    return nodes(house, ast.FunctionDef, ast.AsyncFunctionDef)


def per_thousand_lines(count, house):
    return 1000 * count / sum(read_source(path).count("\n") for path in list_sources(house))


def public_names(path):
    definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    body = parse_source(path).body
    return [n.name for n in body if isinstance(n, definitions) and not n.name.startswith("_")]


def test_stages_are_the_verbs_of_the_loop_and_little_else():
    files = sorted(STAGES.glob("*.py"))
    assert len(files) <= 14
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= 2600


def test_each_function_of_a_stage_is_used_by_the_loop_or_another_room():
    words = {
        path: collections.Counter(re.findall(r"\w+", read_source(path))) for path in list_sources()
    }
    files_with = collections.Counter(word for counted in words.values() for word in counted)
    unused = [
        f"{file.name}: {name}"
        for file in STAGES.glob("*.py")
        for name in public_names(file)
        if files_with[name] < 2 and words[file][name] < 2
    ]
    assert not unused


def test_the_loop_is_one_text_and_flows_are_flows():
    loop = (ROOT / "nip_core" / "loop.py").read_text(encoding="utf-8")
    assert len(loop.splitlines()) <= 230
    flows = [path for path in (ROOT / "flows").rglob("*.py") if path.name != "__init__.py"]
    assert len(flows) <= 10
    # A flow, or what flows alone need.
    texts = {path.stem: path.read_text(encoding="utf-8") for path in flows}
    together = "\n".join(texts.values())
    for name, text in texts.items():
        assert "@flow" in text or f"nip_prefect.flows.{name} import" in together, name


def test_links_are_those_that_the_installed_names_need():
    links = {
        str(path.relative_to(ROOT))
        for folder in (*HOUSES.values(), ROOT / "nip_prefect")
        for path in (folder, *folder.rglob("*"))
        if path.is_symlink()
    }
    assert all((ROOT / link).exists() for link in links)
    assert links == {
        "nip_core/configs",
        "nip_prefect/flows",
        "nip_prefect/tasks",
        "nip_prefect/prefect.yaml",
    } | {
        # What builds vLLM's environment is run from scripts/ here, and comes with the wheel.
        f"packages/nip-lm-server/nip_lm_server/engines/vllm/scripts/{name}"
        for name in (
            "environment.sh",
            "build_vllm_cpu.sh",
            "build_vllm_cuda.sh",
            "vllm_cpu_constraints.txt",
            "vllm_cuda_constraints.txt",
        )
    }


@pytest.mark.parametrize("house", ["nip_core", "nip_lm_server"])
def test_no_file_name_stands_in_two_rooms(house):
    rooms = collections.defaultdict(set)
    for path in list_sources(house):
        rooms[path.name].add(path.parent)
    assert not [n for n, at in rooms.items() if len(at) > 1 and n not in SHARED_NAMES]


def test_a_public_name_is_one_thing():
    places = collections.defaultdict(set)
    for path in list_sources("nip_core"):
        for name in public_names(path):
            places[name].add(path)
    doubled = {name for name, files in places.items() if len(files) > 1}
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Words")[2]
    words = {
        word.strip().lower()
        for row in re.findall(r"^\| ([^|]+) \|", page, re.M)
        for word in row.split(",")
    }
    assert len(doubled) <= 10, sorted(doubled)
    assert not {name for name in doubled if name.lower() in words}


@pytest.mark.parametrize(("house", "most_untyped"), [("nip_core", 4), ("nip_lm_server", 5)])
def test_documents_have_types(house, most_untyped):
    annotations = [
        note
        for function in functions(house)
        for note in (
            *(
                a.annotation
                for a in (
                    *function.args.posonlyargs,
                    *function.args.args,
                    *function.args.kwonlyargs,
                )
            ),
            function.returns,
        )
        if note is not None
    ]
    untyped = sum(len(UNTYPED.findall(ast.unparse(note))) for note in annotations)
    assert per_thousand_lines(untyped, house) <= most_untyped
    reads = sum(map(_reads_key, nodes(house, ast.Subscript, ast.Call)))
    assert per_thousand_lines(reads, house) <= 18


def _reads_key(node):
    if isinstance(node, ast.Subscript):
        key = node.slice
        reads = isinstance(node.ctx, ast.Load)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        key, reads = node.args[0], node.func.attr == "get"
    else:
        return False
    return reads and isinstance(key, ast.Constant) and isinstance(key.value, str)


def test_the_loop_reads_no_keys():
    asking = list_nodes(ROOT / "nip_core" / "loop.py", ast.Subscript, ast.Call)
    reads = [ast.unparse(node) for node in asking if _reads_key(node)]
    assert all(read.startswith("result[") for read in reads), reads  # the summary, as JSON


@pytest.mark.parametrize("house", ["nip_core", "nip_lm_server"])
def test_first_sentences_stand_on_their_own(house):
    docstrings = [doc for f in functions(house) if (doc := ast.get_docstring(f))]
    hanging = [doc for doc in docstrings if RELATIVE.search(doc.split("\n\n")[0])]
    assert len(hanging) / len(docstrings) <= 0.15
