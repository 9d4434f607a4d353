"""Every result on record says which commit was measured, and whether that is in this history."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from killed_results import ABOUT, list_points

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
HASH = r"[0-9a-f]{7,40}"
AFTER_A_WORD = re.compile(rf"\b(?:[Cc]ommits?|at) ((?:`?{HASH}\b`?(?:-dirty)?(?:, | and )?)+)")
TABLE = RESULTS / "README.md"
NOT_HERE = "not in this history"


def named_in_json(value):
    """The texts at the keys commit and commits, at any depth."""
    if isinstance(value, list):
        return [text for item in value for text in named_in_json(item)]
    if not isinstance(value, dict):
        return []
    texts = []
    for key, item in value.items():
        if key in ("commit", "commits"):
            texts += [item] if isinstance(item, str) else [*map(str, item)]
        else:
            texts += named_in_json(item)
    return texts


def commits_in(file):
    text = file.read_text(encoding="utf-8")
    said = named_in_json(json.loads(text)) if file.suffix == ".json" else []
    said += AFTER_A_WORD.findall(text) if file.suffix == ".md" else []
    return {commit for words in said for commit in re.findall(rf"\b{HASH}\b", words)}


def commits_by_line(page):
    """The commits that each line of the table of results names, and whether it says they are gone."""
    rows = [line.split(" | ") for line in page.read_text(encoding="utf-8").split("\n")]
    cells = [row[2] for row in rows if row[0].startswith("| ") and len(row) == 4]
    return [(set(re.findall(rf"\b{HASH}\b", cell)), NOT_HERE in cell) for cell in cells[1:]]


def git(*arguments):
    """What git says, None where this is no checkout or there is no git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def test_a_page_that_is_wrong_in_part_begins_with_saying_so():
    _, first, *_ = (RESULTS / "study" / "README.md").read_text(encoding="utf-8").split("\n\n")
    assert "(../study.md#what-was-found)" in first and "is wrong" in first


def test_every_file_of_figures_says_which_commit_was_measured_or_that_none_is_on_record():
    silent = [
        file.name
        for file in sorted(RESULTS.glob("*.json"))
        if not named_in_json(json.loads(file.read_text(encoding="utf-8")))
    ]
    assert not silent


def test_a_commit_that_results_name_is_in_this_history_or_its_line_says_that_it_is_not():
    # 1. A line of the table may say that its commits are gone; a page, or a file of figures, may not.
    lines = commits_by_line(TABLE)
    assert all(commits for commits, _ in lines)
    gone = set[str]().union(*(commits for commits, is_gone in lines if is_gone))
    named = {}
    for file in sorted([*RESULTS.rglob("*.json"), *RESULTS.rglob("*.md")]):
        beside = set().union(*(commits for commits, _ in lines)) if file == TABLE else set()
        for commit in (commits_in(file) | beside) - (gone if file == TABLE else set()):
            named.setdefault(commit, []).append(file.name)
    assert len(named) > 40 and len(gone) > 5
    # 2. A clone that is not deep lacks commits of this history, so it can say who is in it, not who
    #    isn't. The test then ends as skipped, with the commits, which the summary names.
    history = (git("rev-list", "HEAD") or "").split()
    missing = {c: files for c, files in named.items() if not any(h.startswith(c) for h in history)}
    stale = [commit for commit in gone if any(h.startswith(commit) for h in history)]
    assert not stale, "these are in this history, and the table of docs/results says they are not"
    if missing and git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip(f"no whole history here to look for {', '.join(sorted(missing))} in")
    assert not missing, "not in this history: measure anew, or make the result a line of the table"


def test_a_line_of_the_table_names_its_commits(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(
        "| question | page |\n|---|---|\n| a | b |\n\n"
        "| question | figure | commit | command |\n|---|---|---|---|\n"
        "| a? | 1 | 704b7a1, since fe6e48a | `x` |\n"
        "| b? | 2 | 80a0bd7 (not in this history) | `y` |\n"
    )
    assert commits_by_line(page) == [({"704b7a1", "fe6e48a"}, False), ({"80a0bd7"}, True)]


def test_commits_are_found_where_results_name_them(tmp_path):
    page = tmp_path / "some.md"
    page.write_text(
        "`make x` at 704b7a1 on 2 cores, with that of commits fe6e48a and 80a0bd7. At 1234567.\n"
    )
    figures = page.with_suffix(".json")
    figures.write_text(json.dumps({"rows": [{"commit": "8e8b4ab-dirty", "label": "feedbee"}]}))
    assert commits_in(page) == {"704b7a1", "fe6e48a", "80a0bd7"}
    assert commits_in(figures) == {"8e8b4ab"}


def test_the_page_of_the_kill_matrix_counts_the_points_of_its_figures():
    matrix = json.loads((RESULTS / "kill_matrix.json").read_text(encoding="utf-8"))
    page = (RESULTS / "kill_matrix.md").read_text(encoding="utf-8")
    assert "\n".join(list_points("kill_matrix", matrix["rows"], matrix["commits"])) in page
    assert len(page.splitlines()) < 100 and ABOUT["kill_matrix"][0][:40] in page
    rows = [{**matrix["rows"][0], "happened": "lost an answer"}, *matrix["rows"][1:]]
    assert "lost an answer" in "\n".join(list_points("kill_matrix", rows, matrix["commits"]))
