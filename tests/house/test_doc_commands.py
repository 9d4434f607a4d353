"""Every command on the pages is one that there is, and is run by a test or says why it is not."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from doc_blocks import MARKED, REASONS, ROOT, Block, blocks, commands, pages
from houses import HOUSES, list_nodes, list_sources

from nip_cli import cli
from nip_cli.command_table import load_command, read_panels

COMMAND = typer.main.get_command(cli.app)
NAMES = [name for lines in read_panels().values() for name, _, _ in lines]
COMMANDS = {name: load_command(name) for name in NAMES}
PAGES = pages()
BLOCKS = [block for page in PAGES for block in blocks(page)]
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
OPTIONS = {"exit", "until", "file", "with", "extra"}
HOW = "mark it in the line above, as tests/helpers/doc_blocks.py says"


def nip_command(words: list[str]) -> list[str] | None:
    """What follows `nip` in a command; None: it is another one."""
    return words[1:] if words and words[0] in ("nip", ".venv/bin/nip") else None


def parse(arguments: list[str]) -> None:
    """Parse a command of nip without running it; raises what nip would print."""
    if arguments[0] == "--install-completion":  # parsing it would do it
        assert any("--install-completion" in option.opts for option in COMMAND.params)
        return
    command: Any = COMMAND
    context = command.make_context("nip", [*arguments])
    while hasattr(command, "resolve_command"):
        # Which words are left for the inner command, in newer and in older versions.
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        if not rest:
            return
        name, command, words = command.resolve_command(context, rest)
        context = command.make_context(name, [*words])


NIP = [
    pytest.param(words, id=f"{block}:{shlex.join(words)[:40]}")
    for block in BLOCKS
    for command in commands(block)
    if (words := nip_command(command)) is not None
]


@pytest.mark.parametrize("arguments", NIP)
def test_each_command_of_nip_has_these_options_and_arguments(arguments):
    parse([word.replace("…", "x") for word in arguments])


def test_a_command_with_a_wrong_option_is_noticed():
    for wrong in (
        ["train", "x", "--no-such"],
        ["trian", "x"],
        ["sweep", "x", "--jobs", "y"],
    ):
        with pytest.raises(Exception, match=r"(?i)no such|missing|valid integer"):
            parse(wrong)
    assert len(NIP) > 60


def spans() -> Iterator[tuple[Path, str]]:
    """Code within the prose."""
    for page in PAGES:
        prose = re.sub(
            r"^[ \t]*(`{3,}).*?^[ \t]*\1", "", page.read_text("utf-8"), flags=re.S | re.M
        )
        yield from ((page, span) for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose))


def test_each_command_within_a_sentence_is_one_with_these_options():
    wrong = []
    for page, span in spans():
        name = re.match(r"nip ([a-z]+)(?: ([a-z]+))?\b", span)
        target = re.match(r"make ([a-z][\w-]*)", span)
        if target and target[1] not in TARGETS:
            wrong.append(f"{page.name}: {span}")
        if not name:
            continue
        command: Any = COMMANDS.get(name[1])
        if getattr(command, "commands", None) and name[2]:
            command = command.commands.get(name[2])
        options = {o for p in getattr(command, "params", ()) for o in p.opts} | {"--help"}
        if command is None or not set(re.findall(r"(?<=\s)--[a-z][\w-]+", span)) <= options:
            wrong.append(f"{page.name}: {span}")
    assert not wrong


def test_each_file_and_target_that_a_command_names_is_there():
    wrong = []
    for block in BLOCKS:
        for words in commands(block):
            if words[0] == "make" and (bad := [w for w in words[1:2] if w not in TARGETS]):
                wrong.append(f"{block}: make {bad[0]}")
            for word in words:
                named = re.fullmatch(r"(?:scripts|benchmarks|deployments|tests)/[\w./-]+", word)
                if named and not (ROOT / word).exists():
                    wrong.append(f"{block}: {word}")
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_block_that_could_run_is_run_by_a_test_or_says_why_not(page):
    """The page that a stranger meets first, README.md, is read by its own people."""
    wrong = [
        f"{block}: {problem}" for block in blocks(page) if (problem := _problem(block)) is not None
    ]
    assert not wrong, "\n".join(wrong)


def _problem(block: Block) -> str | None:
    """What is wrong with the mark of a block."""
    if block.language not in MARKED and block.mark is None:
        return None
    if block.mark is None:
        return None if block.page.name == "README.md" else f"no mark: {HOW}"
    if block.mark == "not run":
        return None if block.about in REASONS else f"{block.about!r} is no reason: {[*REASONS]}"
    if block.mark == "run":
        return None if set(block.options) <= OPTIONS else "unknown option"
    if block.about.startswith("make "):
        return None if block.about.removeprefix("make ") in TARGETS else "no such target"
    test = ROOT / block.about
    named = test.exists() and block.page.name in test.read_text("utf-8").replace('" / "', "/")
    return None if named else f"{block.about} is not there, or does not name {block.page.name}"


def test_each_yaml_on_a_page_is_yaml():
    for block in BLOCKS:
        if block.language in ("yaml", "yml"):
            yaml.safe_load(block.text)


def _navigation(entries: list[dict[str, Any]]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            yield from _navigation(value) if isinstance(value, list) else (value,)


def test_each_page_has_a_place_in_the_navigation_and_each_place_a_page():
    text = (ROOT / "scripts/docs/mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    places = {*_navigation(yaml.safe_load(text))}
    docs = ROOT / "docs"
    names = {
        path.relative_to(docs).as_posix()
        for pattern in ("*.md", "howto/*.md", "games/*.md", "notebooks/*.ipynb")
        for path in docs.glob(pattern)
    }
    assert not names - places, "give it a line in scripts/docs/mkdocs.yml"
    made = {"API", "RESULTS", "DECISIONS", "cli.md", "CONTRIBUTING.md", "CHANGELOG.md"}
    assert not places - names - made


def _texts_of_the_code() -> str:
    """All texts in the code, with … for what is filled in."""
    texts = []
    for path in list_sources(*HOUSES.keys() - {"factory"}):
        for node in list_nodes(path, ast.JoinedStr):
            parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
            texts.append("".join(map(str, parts)))
        values = [node.value for node in list_nodes(path, ast.Constant)]
        texts += [value for value in values if isinstance(value, str)]
    return "\n".join(texts) + (ROOT / "Makefile").read_text("utf-8")


def test_the_messages_of_the_troubleshooting_page_are_those_of_the_code():
    page = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    tables = page.partition("## When it starts")[2].partition("## Afterwards")[0]
    quoted = re.findall(r"^\| (?:[a-z ]*)`([^`]+)`", tables, re.MULTILINE)
    pieces = {piece.strip(" ;:()") for quote in quoted for piece in quote.split("…")}
    code = _texts_of_the_code()
    known = {"", "nip: command not found"}  # the shell's
    assert len(quoted) > 20
    assert {piece for piece in pieces if piece not in code} <= known


def test_the_exit_codes_of_the_troubleshooting_page_are_those_of_the_command():
    page = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    codes = {int(code) for code in re.findall(r"^\| (\d+)\b", page, re.MULTILINE)}
    assert codes >= {code for _, code in cli._EXIT_CODES} | {0, 1}
