"""Write llms.txt: the pages of the documentation with what each is about, for language models.

    python scripts/llms_txt.py          write it
    python scripts/llms_txt.py --check  exit 1 if it is not up to date

The form is that of llmstxt.org. Titles and sentences are those of the pages, so there is nothing
to keep up to date by hand.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "llms.txt"
SECTIONS = (
    ("Pages", ("README.md", "docs/*.md", "docs/howto/*.md", "docs/games/*.md")),
    ("Contributing", ("CONTRIBUTING.md", "SECURITY.md", "docs/decisions/README.md")),
    ("Optional", ("CHANGELOG.md", "docs/results/*.md")),
)
_LONGEST = 200


def llms_txt() -> str:
    """The content of llms.txt."""
    _, summary = title_and_sentence(ROOT / "README.md")
    parts = [f"# nip\n\n> {summary}\n"]
    for heading, patterns in SECTIONS:
        lines = [f"## {heading}\n"]
        for path in [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]:
            title, sentence = title_and_sentence(path)
            about = f": {sentence}" if sentence else ""
            lines.append(f"- [{title}]({path.relative_to(ROOT).as_posix()}){about}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def title_and_sentence(page: Path) -> tuple[str, str]:
    """The heading of a page, and the first sentence of its first paragraph of text."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"\A---\n.*?\n---\n|<!--.*?-->|```.*?```", "", text, flags=re.DOTALL)
    [title] = re.findall(r"^# (.+)$", text, re.MULTILINE)[:1] or [page.stem]
    for paragraph in text.partition(f"# {title}")[2].partition("\n## ")[0].split("\n\n"):
        plain = " ".join(paragraph.split())
        is_text = plain and plain[0] not in "#|!<-*>:" and not plain.startswith("[![")
        if is_text or plain.startswith("**"):
            plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain).replace("**", "")
            sentence = re.split(r"(?<=[.:])(?<!al\.)\s", plain)[0].rstrip(":")
            return title, sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]}…"
    return title, ""


def main() -> None:
    """Write or check the file."""
    if "--check" not in sys.argv[1:]:
        FILE.write_text(llms_txt(), encoding="utf-8")
    elif not FILE.exists() or FILE.read_text(encoding="utf-8") != llms_txt():
        sys.exit("llms.txt: not what the pages say; run python scripts/llms_txt.py")


if __name__ == "__main__":
    main()
