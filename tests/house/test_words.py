"""Prose and names without the house's old accent, room by room.

Three counts, over all docstrings, all comments and all names of a room:

headless  "what is kept" where a noun belongs: "the files that are kept"
vague     somebody, nobody, anybody, everybody where an actor belongs: "no reader"
bare      an adverb, a preposition or a participle as the name of a value: `of`, `told`

A room is a folder directly below a package; the files beside these folders are a room as well.
The pages of `docs/` are held to the first two, and to a number of words, without code, tables
and headings; pages that a command makes count by their words alone.
"""

import ast
import re
from dataclasses import dataclass

from houses import HOUSES, ROOT, list_sources, read_source, sort_nodes, sort_source

HEADLESS = re.compile(
    r"(?:^|[.;:,] |\b(?:is|and|of|from|by|to|in|as|than|or|on|with|for) )what\b", re.I | re.M
)
VAGUE = re.compile(r"\b(?:some|no|any|every)body\b", re.I)
ADVERBS = """
    of at by to on there here beside before after others other above below around again alone
    whose what which who where when why how so no far near much many most least else behind within
    apart
"""
PARTICIPLES = """
    told given asked shown played measured taken made came done left said found read kept seen
    spent wanted known meant stored added named changed refused tested trained chosen drawn written
    called served answered counted learned ended begun sent got missing gone proved judged recorded
    committed planned declared attacked estimated lost
"""
TEXT_OR_COMMENT = re.compile(
    r""""{3}(?:\\[\s\S]|[^\\])*?"{3}|'{3}(?:\\[\s\S]|[^\\])*?'{3}"""
    r"""|"(?:\\[\s\S]|[^"\\\n])*"|'(?:\\[\s\S]|[^'\\\n])*'|(#.*)"""
)
"""A sign within a text begins no comment, and a tokenizer takes ten times as long."""
BARE = {*ADVERBS.split(), *PARTICIPLES.split()}
MOST_HEADLESS = 15
"""Of 10,000 words of docstrings and comments."""
MOST_VAGUE = 3
"""Of 10,000 words of docstrings and comments."""
MOST_BARE = 20
"""Of 1,000 bindings."""
MOST_HEADLESS_OF_PAGES = 10
"""Of 10,000 words of prose."""
MOST_WORDS_OF_PAGES = 110_000
MADE_BY_COMMANDS = ("docs/settings.md", "docs/results/*/*.md", "docs/results/side_by_side.md")
NOT_YET: dict[str, tuple[int, int, int]] = {}
"""Rooms that do not keep the limits yet, and their counts: these only shrink."""


@dataclass
class Count:
    """The three counts of a room, its words and its bindings."""

    words: int = 0
    names: int = 0
    headless: int = 0
    vague: int = 0
    bare: int = 0

    @property
    def counts(self):
        return self.headless, self.vague, self.bare

    @property
    def keeps_limits(self):
        return (
            self.headless * 10_000 <= MOST_HEADLESS * self.words
            and self.vague * 10_000 <= MOST_VAGUE * self.words
            and self.bare * 1_000 <= MOST_BARE * self.names
        )

    def add(self, source, nodes):
        """Count one file."""
        prose = "\n".join([*list_docstrings(nodes), *list_comments(source)])
        names = list_bindings(nodes)
        self.words += len(re.findall(r"[A-Za-z']+", prose))
        self.headless += len(HEADLESS.findall(prose))
        self.vague += len(VAGUE.findall(prose))
        self.names += len(names)
        self.bare += sum(name in BARE for name in names)


def list_docstrings(nodes):
    """The docstrings of a module, its classes and its functions."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [ast.get_docstring(node) or "" for kind in documented for node in nodes.get(kind, ())]


def list_comments(source):
    """The comments of a source, without their signs."""
    matches = TEXT_OR_COMMENT.finditer(source)
    return [match[1].lstrip("# ") for match in matches if match[1] is not None]


def list_bindings(nodes):
    """The names of variables, fields and arguments, once for each binding."""
    stored = [node.id for node in nodes.get(ast.Name, ()) if isinstance(node.ctx, ast.Store)]
    return [*stored, *(node.arg for node in nodes.get(ast.arg, ()))]


def read_prose(page):
    """The paragraphs of a page, a line each, without code, tables, headings and addresses."""
    paragraphs = [[]]
    for line in re.sub(r"```.*?```|<!--.*?-->", "", page, flags=re.DOTALL).splitlines():
        text = line.strip()
        if not text or text[0] in "|#" or re.match(r"[-*] |\d+\. ", text):
            paragraphs.append([])
        if text and text[0] not in "|#":
            paragraphs[-1].append(re.sub(r"^(?:[-*>]|\d+\.) +", "", text))
    prose = "\n".join(" ".join(lines) for lines in paragraphs if lines)
    return re.sub(r"\]\([^)]*\)", "]", prose)


def count_pages():
    """The words of all pages, and the count of those that people write."""
    words, count = 0, Count()
    for path in sorted((ROOT / "docs").rglob("*.md")):
        prose = read_prose(path.read_text(encoding="utf-8"))
        words += len(prose.split())
        if not any(path.relative_to(ROOT).match(made) for made in MADE_BY_COMMANDS):
            count.words += len(prose.split())
            count.headless += len(HEADLESS.findall(prose))
            count.vague += len(VAGUE.findall(prose))
    return words, count


def count_rooms():
    """The counts of every room, by the path of its folder."""
    rooms = {}
    for package in HOUSES.values():
        for path in list_sources(package.name):
            folders = path.relative_to(package).parts[:-1]
            if not any(place.is_symlink() for place in (path, *path.parents)):
                room = package.joinpath(*folders[:1]).relative_to(ROOT).as_posix()
                rooms.setdefault(room, Count()).add(read_source(path), sort_source(path))
    return rooms


def find_faults(rooms, not_yet):
    """Rooms above their counts, and entries of rooms that keep the limits by now."""
    for room, count in rooms.items():
        if room not in not_yet:
            if not count.keeps_limits:
                yield f"{room} is above the limits: {count}"
        elif count.keeps_limits:
            yield f"{room} keeps the limits: take it out of NOT_YET"
        elif any(today > most for today, most in zip(count.counts, not_yet[room], strict=True)):
            yield f"{room} is above {not_yet[room]}: {count}"
    yield from (f"there is no room {room}" for room in not_yet if room not in rooms)


def test_pages_end_and_keep_the_limits():
    words, count = count_pages()
    assert 50_000 < count.words < words <= MOST_WORDS_OF_PAGES
    assert count.headless * 10_000 <= MOST_HEADLESS_OF_PAGES * count.words, count
    assert count.vague * 10_000 <= MOST_VAGUE * count.words, count


def test_prose_of_a_page_is_its_paragraphs():
    page = "# What is it\n\nIt takes\nwhat [is there](a.md).\n- what is kept\n\n| what is |\n```\nx\n```\n"
    assert read_prose(page) == "It takes what [is there].\nwhat is kept"
    assert len(HEADLESS.findall(read_prose(page))) == 1


def test_every_room_keeps_the_limits():
    assert list(find_faults(count_rooms(), NOT_YET)) == []


def test_a_room_above_its_counts_is_noticed():
    rough, fine = Count(100, 100, 2, 0, 3), Count(1000, 100, 1, 0, 2)
    assert list(find_faults({"a": rough, "b": fine}, {"a": (2, 0, 3)})) == []
    assert list(find_faults({"a": rough}, {})) == [f"a is above the limits: {rough}"]
    assert list(find_faults({"a": rough}, {"a": (2, 0, 2)})) == [f"a is above (2, 0, 2): {rough}"]
    assert list(find_faults({"b": fine}, {"b": (1, 0, 2), "c": (1, 0, 0)})) == [
        "b keeps the limits: take it out of NOT_YET",
        "there is no room c",
    ]


def test_each_accent_is_counted():
    source = '\n'.join(
        [
            '"""What is kept.', '', 'A list of what is asked: nobody reads it."""',
            "of = 1  # what is left", "def give(told, kind):", "    return told",
        ]
    )  # fmt: skip
    count = Count()
    count.add(source, sort_nodes(ast.parse(source)))
    assert count == Count(words=15, names=3, headless=3, vague=1, bare=2)


def test_a_sign_within_a_text_begins_no_comment():
    source = '''x = "# no"  # one\ny = """\n# no \\""" # no\n""" + '\\'# no'\n# two'''
    assert list_comments(source) == ["one", "two"]


def test_nouns_and_questions_are_not_counted():
    source = '"""Tell what a model costs."""\nmodels = [model for model in list_models()]\n'
    count = Count()
    count.add(source, sort_nodes(ast.parse(source)))
    assert count.counts == (0, 0, 0)
