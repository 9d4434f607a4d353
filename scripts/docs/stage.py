"""Lays the pages of the site out for the builder: ``python stage.py BUILD``.

The pages are those of docs/, which stay readable on a code host. What the site needs beyond them:

1. links out of docs/ lead to a page that shows the file, as the site has none of the others;
2. a link to a folder leads to a page that lists it;
3. notebooks become Markdown, with the outputs that they have;
4. the modules of `API` become pages, which the builder fills from the docstrings, and the commands
   of `nip` one, from what they say of themselves;
5. the marks of tests (see tests/docs/blocks.py) are left out;
6. results and decisions are put into the navigation as they lie there.

Not covered: that links are right. The builder's strict mode and check_links.py look at that.
"""

import argparse
import os
import posixpath
import re
import shutil
from pathlib import Path

import yaml
from commands import reference_of_commands
from notebooks import as_markdown

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
DOCS = ROOT / "docs"

API = {
    "The loop": ["nip_core.loop"],
    "Settings": [
        "nip_core.parameters.load",
        "nip_core.parameters.hyper_parameters",
        "nip_core.parameters.basis.base",
    ],
    "Protocols": ["nip_core.protocols.base"],
    "Scenarios": ["nip_core.scenarios.base", "nip_core.scenarios.datasets"],
    "Agents by hand": [
        "nip_by_hand.agents.environment",
        "nip_by_hand.agents.protocol_handler",
        "nip_by_hand.agents.whole_agent",
        "nip_by_hand.agents.openai_whole_agent",
        "nip_by_hand.agents.shared_model_group",
        "nip_by_hand.agents.openai_model_group",
        "nip_by_hand.agents.nested_array_dict",
        "nip_by_hand.agents.errors",
    ],
    "Trainer adapters": [
        "nip_by_hand.fine_tuning.interface",
        "nip_by_hand.fine_tuning.openai_adapter",
        "nip_by_hand.fine_tuning.openai_adapter_config",
    ],
    "Rollouts": [
        "nip_core.rollouts.storage.tables",
        "nip_core.rollouts.trees",
        "nip_core.game.render",
    ],
    "Metrics and statistics": [
        "nip_core.evaluation.metrics",
        "nip_core.evaluation.statistics.clustered",
        "nip_core.evaluation.statistics.differences",
        "nip_study.parts.two_way",
    ],
    "Problems and the sandbox": [
        "nip_problems.mutation.mutate",
        "nip_problems.mutation.rewrite",
        "nip_sandbox.sandbox",
    ],
    "Jobs": ["nip_core.jobs.ledger", "nip_core.jobs.job", "nip_by_hand.fine_tuning.submissions"],
    "Run store": ["nip_core.run_store.store", "nip_core.run_store.manifest"],
    "lm_server's client": ["nip_lm_server.client", "nip_base.spec", "nip_lm_server.launch"],
    "Errors": ["nip_core.errors"],
}
"""The public modules, by the name of their page; those that are not there are left out."""

LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}
TOP_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
MARK = re.compile(r"^[ \t]*<!-- (?:run|tested|not run)\b.*?-->\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!\\)(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s]+)\)")
FENCE = re.compile(r"^([ \t]*)(`{3,}).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)


class Stage:
    """The folder of pages, and which pages for files it still lacks."""

    def __init__(self, build: Path) -> None:
        self.pages = build / "pages"
        self.build = build
        self.shown: dict[str, str] = {}
        """By the path of a file or folder in the repository: its page."""

    def write(self) -> None:
        """Write everything that the builder reads."""
        shutil.rmtree(self.build, ignore_errors=True)
        self.pages.mkdir(parents=True)
        for source in sorted(path for path in DOCS.rglob("*") if path.is_file()):
            name = source.relative_to(DOCS).as_posix()
            target = self.pages / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".md":
                target.write_text(self.page(source.read_text("utf-8"), f"docs/{name}", name))
            elif source.suffix == ".ipynb":
                text = as_markdown(source, self.pages, posixpath.dirname(name))
                path = target.with_suffix(".md")
                path.write_text(self.page(text, f"docs/{name}", name[: -len("ipynb")] + "md"))
            else:
                shutil.copyfile(source, target)
        for name in TOP_PAGES:
            if (ROOT / name).exists():
                text = (ROOT / name).read_text("utf-8")
                (self.pages / name).write_text(self.page(text, name, name))
        (self.pages / "cli.md").write_text(reference_of_commands())
        shown = 0
        while shown < len(self.shown):  # a page that shows a file may name others
            for path, page in [*self.shown.items()][shown:]:
                shown += 1
                self.show(path, page)
        for place in ("site.css", "mermaid.min.js", "iframe-worker.js"):
            source = next((p for p in (HERE / place, self.vendored / place) if p.exists()), None)
            if source is not None:
                (self.pages / "assets").mkdir(exist_ok=True)
                shutil.copyfile(source, self.pages / "assets" / place)
        (self.build / "mkdocs.yml").write_text(self.configuration())

    @property
    def vendored(self) -> Path:
        """Where build_docs.sh keeps what it fetched."""
        return Path(os.environ.get("NIP_DOCS_ENVIRONMENT", ROOT / ".docs-env")) / "vendored"

    def page(self, text: str, source: str, page: str) -> str:
        """The page of a Markdown file that lies at `source` in the repository."""
        text = MARK.sub("", text)
        parts, end = [], 0
        for fence in FENCE.finditer(text):
            parts += [self.relinked(text[end : fence.start()], source, page), fence.group()]
            end = fence.end()
        text = "".join([*parts, self.relinked(text[end:], source, page)])
        if "```mermaid" in text and (self.vendored / "mermaid.min.js").exists():
            depth = "../" * page.count("/")
            text += f'\n<script src="{depth}assets/mermaid.min.js"></script>\n'
        return text

    def relinked(self, text: str, source: str, page: str) -> str:
        """The prose with links that lead to pages of the site."""

        def new_link(match: re.Match[str]) -> str:
            label, target = match.groups()
            return f"{label}({self.target(target, source, page)})"

        return LINK.sub(new_link, text)

    def target(self, target: str, source: str, page: str) -> str:
        """Where a link of the page goes on the site."""
        path, hash_, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return target
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not (ROOT / place).exists():
            return target  # the builder complains
        inside = place.removeprefix("docs/")
        if place in TOP_PAGES:
            there = place
        elif place == "README.md":
            there = "README.md"
        elif (ROOT / place).is_dir() and (ROOT / place / "README.md").exists():
            return self.target(f"{target.rstrip('/')}/README.md", source, page)
        elif inside != place and place.endswith(".ipynb"):
            there = inside[: -len("ipynb")] + "md"
        elif inside != place and place.endswith((".md", ".svg", ".png", ".html")):
            there = inside
        else:
            there = self.shown.setdefault(place, f"files/{place}.md")
        return posixpath.relpath(there, posixpath.dirname(page) or ".") + hash_ + anchor

    def show(self, path: str, page: str) -> None:
        """Write the page that shows a file or a folder of the repository."""
        source = ROOT / path
        if source.is_dir():
            names = sorted(
                inner.name + "/" * inner.is_dir()
                for inner in source.iterdir()
                if not inner.name.startswith((".", "__"))
            )
            text = "".join(
                f"- [{name}]({self.target(name.rstrip('/'), f'{path}/x', page)})\n"
                for name in names
            )
        elif source.suffix == ".md":
            text = self.page(source.read_text("utf-8"), path, page)
        elif source.suffix == ".parquet":
            text = f"A Parquet file of {source.stat().st_size:,} bytes, in the repository.\n"
        else:
            text = source.read_text("utf-8")
            if len(text) > 60_000:
                text = text[:60_000] + f"\n... ({len(text):,} characters in all)\n"
            text = f"````` {LANGUAGES.get(source.suffix, 'text')}\n{text}\n`````\n"
        target = self.pages / page
        target.parent.mkdir(parents=True, exist_ok=True)
        head = "" if source.suffix == ".md" else f"# `{path}`\n\n"
        target.write_text(f"---\nsearch:\n  exclude: true\n---\n\n{head}{text}")

    def configuration(self) -> str:
        """mkdocs.yml with its navigation filled in."""
        text = (HERE / "mkdocs.yml").read_text("utf-8")
        text = text.replace("[SOURCES]", f"[{ROOT}]").replace("HERE/", f"{HERE}/")
        head, _, nav = text.partition("\nnav:\n")
        return f"{head}\nnav:\n" + yaml.safe_dump(
            self.filled(yaml.safe_load(nav)), allow_unicode=True, sort_keys=False, width=1000
        )

    def filled(self, entries: list[dict[str, object]]) -> list[dict[str, object]]:
        """The navigation without pages that are not there, and with those that are found."""
        filled: list[dict[str, object]] = []
        for entry in entries:
            ((title, value),) = entry.items()
            if isinstance(value, list):
                if inner := self.filled(value):
                    filled.append({title: inner})
            elif value == "API":
                filled.append({title: self.api_pages()})
            elif value in ("RESULTS", "DECISIONS"):
                filled.append({title: self.folder(str(value).lower())})
            else:
                name = str(value).replace(".ipynb", ".md")
                if (self.pages / name).exists():
                    filled.append({title: name})
        return filled

    def folder(self, name: str) -> list[dict[str, object]]:
        """The pages of a folder by their titles; its README first."""
        paths = sorted(
            (self.pages / name).glob("*.md"), key=lambda p: (p.name != "README.md", p.name)
        )
        pages: list[dict[str, object]] = []
        for path in paths:
            title = path.read_text("utf-8").partition("\n")[0].lstrip("# ")
            pages.append({title: f"{name}/{path.name}"})
        return pages

    def api_pages(self) -> list[dict[str, object]]:
        """Write a page for each name in `API`."""
        entries: list[dict[str, object]] = []
        (self.pages / "reference").mkdir(exist_ok=True)
        for title, modules in API.items():
            there = [m for m in modules if _is_module(m)]
            name = "reference/" + re.sub(r"\W+", "-", title.lower()) + ".md"
            text = "".join(f"::: {module}\n\n" for module in there)
            (self.pages / name).write_text(f"# {title}\n\n{text}")
            entries.append({title: name})
        return entries


def _is_module(name: str) -> bool:
    place = ROOT.joinpath(*name.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    Stage(parser.parse_args().build.resolve()).write()
