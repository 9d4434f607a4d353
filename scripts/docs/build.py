"""Builds the site and checks it: ``python build.py [--out build/docs]``; `make docs`.

1. stage.py lays the pages out;
2. zensical makes HTML of them, and is strict: a link or an anchor that is wrong ends it;
3. what the theme would fetch from elsewhere is replaced by files of the site;
4. check_links.py looks at what came out.
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from check_links import problems
from stage import ROOT, Stage

SHIM = re.compile(r'<script src="?https://unpkg\.com/iframe-worker/shim"?[^>]*></script>')


def main() -> int:
    """Build and check; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs")
    build = parser.parse_args().out.resolve()
    begin = time.monotonic()
    Stage(build).write()
    zensical = Path(sys.executable).with_name("zensical")
    command = [zensical, "build", "--clean", "--strict", "-f", build / "mkdocs.yml"]
    if subprocess.run(command, cwd=build, check=False).returncode:
        return 1
    # Of a site that opens from the disk nobody sees it, and its links begin at a server's root.
    (build / "site" / "404.html").unlink(missing_ok=True)
    pages = [*(build / "site").rglob("*.html")]
    for page in pages:
        _local(page, build / "site")
    wrong = [*problems(build / "site")]
    for line in wrong:
        print(line)
    seconds = time.monotonic() - begin
    print(f"{build / 'site' / 'index.html'}")
    print(f"{len(pages)} pages, {len(wrong)} broken links, {seconds:.0f} s")
    return int(bool(wrong))


def _local(page: Path, site: Path) -> None:
    """Load the worker in which pages from the disk are searched from the site."""
    text = page.read_text("utf-8")
    up = "../" * (len(page.relative_to(site).parts) - 1)
    there = (site / "assets" / "iframe-worker.js").exists()
    shim = f'<script src="{up}assets/iframe-worker.js"></script>' if there else ""
    changed = SHIM.sub(shim, text)
    if changed != text:
        page.write_text(changed, "utf-8")


if __name__ == "__main__":
    sys.exit(main())
