"""The blocks of code on the pages, and what is said of each in a comment that readers do not see.

A comment stands in the line above a block of sh, bash, python or sql:

<!-- run -->               `make test-docs` runs it, with the others of its page, in an empty folder
<!-- run: exit=2 -->       ... which ends with this exit code
<!-- run: until="text" --> ... beside what follows, which begins when it has printed the text
<!-- run: file=name.py --> ... is written to a file, not run (blocks of any language)
<!-- run: extra=NAME -->   ... which needs an extra (READMEs of packages/, see scripts/release.py)
<!-- tested: PATH -->      the test at PATH runs it, and names the page; or `make TARGET` does
<!-- not run: REASON -->   no test runs it, for one of `REASONS`
"""

import re
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
REASONS = {
    "gpu": "needs a GPU",
    "key": "needs a provider's key, and spends money",
    "network": "downloads models, data or packages",
    "machines": "needs other machines, or a service that is set up for good",
    "terminal": "needs somebody at a terminal, or never ends",
    "long": "takes longer than a test may; a benchmark or another tier measures it",
    "excerpt": "a part of something that is tested as a whole, or with names to be filled in",
}
UNTIL_S = 240
MARKED = ("sh", "bash", "console", "python", "sql")
_FENCE = re.compile(r"^([ \t]*)(`{3,})(\w*)[ \t]*$")
_MARK = re.compile(r"^[ \t]*<!-- (run|tested|not run)(?:: (.*?))? -->[ \t]*$")


@dataclass(frozen=True)
class Block:
    """A block of code on a page, with its mark."""

    page: Path
    line: int
    language: str
    text: str
    mark: str | None
    """run, tested, not run; None: there is none."""
    about: str = ""
    options: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """All pages of the repository that have blocks which somebody could run."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    folders = (ROOT / "docs", ROOT / "docs/howto", ROOT / "docs/games")
    docs = [page for folder in folders for page in folder.glob("*.md")]
    parts = (ROOT / "packages").glob("*/README.md")
    return sorted(path for path in (*top, *docs, *parts) if path.exists())


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in its order."""
    result, lines = [], page.read_text(encoding="utf-8").splitlines()
    place = 0
    while place < len(lines):
        begin = _FENCE.match(lines[place])
        if not begin:
            place += 1
            continue
        end = next(i for i in range(place + 1, len(lines)) if lines[i].strip() == begin[2])
        mark = _MARK.match(lines[place - 1]) if place else None
        kind, about = (mark[1], mark[2] or "") if mark else (None, "")
        options = dict(part.partition("=")[::2] for part in shlex.split(about) if "=" in part)
        text = textwrap.dedent("\n".join(lines[place + 1 : end]) + "\n")
        result.append(
            Block(page, place + 1, begin[3], text, kind, about, options if kind == "run" else {})
        )
        place = end + 1
    return result


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block, as words; what is set before a command is left out."""
    if block.language not in ("sh", "bash"):
        return []
    result = []
    text = block.text.replace("\\\n", " ")
    text = re.sub(r"<<'?EOF'?\n.*?\nEOF\n", "\n", text, flags=re.DOTALL)
    for line in text.splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a text over several lines
            continue
        command: list[str] = []
        for word in (*words, ";"):
            if word in (";", "&&", "||", "|", "&"):
                while command and re.match(r"[A-Z_]+=", command[0]):
                    command.pop(0)
                result += [command] if command else []
                command = []
            elif word in (">", ">>", "2>", "2>&1"):
                continue
            else:
                command.append(word)
    return result


def make_script(marked: Sequence[Block], folder: Path, begin: Sequence[str] = ()) -> str:
    """The blocks of a page that are to be run as a shell script, behind the lines `begin`."""
    lines = ["set -euo pipefail", *begin]
    for number, block in enumerate(marked):
        lines.append(f"echo '== {block}' >&2")
        if "file" in block.options:
            (folder / f".block{number}").write_text(block.text)
            lines.append(f"cp .block{number} {block.options['file']}")
            continue
        text = block.text
        if block.language == "python":
            (folder / f".block{number}.py").write_text(text)
            text = f"python .block{number}.py\n"
        if "until" in block.options:
            lines += _until(text, block.options["until"], number)
        elif "exit" in block.options:
            code = block.options["exit"]
            lines += ["set +e", f"(\n{text})", "code=$?", "set -e", f"[ $code = {code} ]"]
        else:
            lines.append(text)
    return "\n".join(lines) + "\n"


def _until(text: str, said: str, number: int) -> list[str]:
    """Exports first, in this shell; then the block beside it, until it has said something."""
    exports = [line for line in text.splitlines() if line.startswith("export ")]
    others = [line for line in text.splitlines() if not line.startswith(("export ", "make "))]
    return [
        *exports,
        "(\n" + "\n".join(others) + f"\n) > .log{number} 2>&1 &",
        f"for i in $(seq {UNTIL_S}); do grep -q '{said}' .log{number} && break; sleep 1; done",
        f"grep -q '{said}' .log{number} || {{ cat .log{number} >&2; exit 1; }}",
    ]
