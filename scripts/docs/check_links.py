"""Checks the built site, as files: ``python check_links.py SITE``.

What is covered
- every link, picture, script and style sheet that a page names is a file of the site;
- every anchor is an id on the page that it leads to;
- no page loads anything from elsewhere (links that a reader may follow are left alone);
- every page is reached from the first one.

What is not covered: links to other sites, which need a network.
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "link": "href"}
"""What a browser fetches by itself, by tag; `link` only for styles, icons and fonts."""
FETCHED = {"stylesheet", "icon", "preload", "modulepreload", "manifest", "preconnect"}


class Page(HTMLParser):
    """Ids and references of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {name for name in (values.get("id"), values.get("name")) if name}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"] or "")
        attribute = LOADED.get(tag)
        address = values.get(attribute) if attribute else None
        relations = set((values.get("rel") or "").split())
        if address and (tag != "link" or relations & FETCHED):
            self.loads.append(address)


def problems(site: Path) -> Iterator[str]:
    """A line for each thing that is wrong."""
    pages = {path.resolve(): Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    reached: set[Path] = set()
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        for address in page.loads:
            if address.startswith("data:"):
                continue
            if urlsplit(address).scheme or address.startswith("//"):
                yield f"{name}: loads {address}"
            elif not _target(path, address)[0].is_file():
                yield f"{name}: {address} is not there"
        for address in page.links:
            if urlsplit(address).scheme or address.startswith("//"):
                continue
            target, anchor = _target(path, address)
            if target.is_dir():
                target /= "index.html"
            if path.name != "404.html":
                reached.add(target)
            if not target.is_file():
                yield f"{name}: {address} leads nowhere"
            elif anchor and target in pages and anchor not in pages[target].ids:
                yield f"{name}: {address}: no #{anchor} on that page"
    first = site.resolve() / "index.html"
    for path in sorted(set(pages) - reached - {first, site.resolve() / "404.html"}):
        yield f"{path.relative_to(site.resolve())}: no page leads to it"
    if first not in pages:
        yield "index.html is not there"


def _target(page: Path, address: str) -> tuple[Path, str]:
    """The file that an address means, and the anchor in it."""
    parts = urlsplit(address)
    path = unquote(parts.path)
    target = (page.parent / path).resolve() if path else page
    return target, unquote(parts.fragment)


if __name__ == "__main__":
    site = Path(sys.argv[1])
    wrong = [*problems(site)]
    print("\n".join(wrong))
    count = sum(1 for _ in site.rglob("*.html"))
    print(
        f"{count} pages, {len(wrong)} broken links" if wrong else f"{count} pages, 0 broken links"
    )
    sys.exit(bool(wrong))
