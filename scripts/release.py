"""Build a release, check it, and tag it.

    python scripts/release.py           a dry run: everything but the tag
    python scripts/release.py --tag     the same, and the tag; nothing is uploaded

What is checked:
    the tree          nothing uncommitted; pyproject.toml, nip_core, CITATION.cff and CHANGELOG.md
                      name one version, of which there is no tag yet; llms.txt is up to date
    the files         a source distribution and a wheel, built from what is committed; both render
                      (`twine check --strict`); the wheel has at most 10 MB and is the same when it
                      is built from the source distribution
    the wheel         in an environment that has nothing else, in an empty directory: --version,
                      doctor, init, and a training with the deterministic engine

`dist/` has the files then, with SHA256SUMS. Tools are installed into an environment of their own.
`--python` names the interpreter of the environments, PIP_OPTIONS has options for pip.
"""

import argparse
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST_WHEEL = 10_000_000  # bytes
TOOLS = ("build==1.6.1", "twine==7.0.0")


def main() -> None:
    """Do all of it; the exit status is 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tag", action="store_true", help="tag the commit in the end")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory for the files")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environments")
    options = parser.parse_args()
    # 1. The tree.
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    problems = tree_problems(version)
    # 2. The files, and what they are in an environment of their own.
    with tempfile.TemporaryDirectory(prefix="nip-release-") as folder:
        place = Path(folder)
        wheel, source = build(place, options.out.absolute(), options.python)
        problems += file_problems(place, wheel, source)
        problems += bare_problems(place, wheel, version, options.python)
    # 3. The verdict.
    for file in (wheel, source):
        print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB")
    if problems:
        sys.exit("\n".join(["not released:", *(f"  {problem}" for problem in problems)]))
    if options.tag:
        run("git", "tag", "--annotate", f"v{version}", "--message", f"nip {version}", cwd=ROOT)
        print(f"tagged v{version}; push the tag and upload {options.out} where it belongs")
    else:
        print(f"all is well; --tag would make the tag v{version}")


def tree_problems(version: str, root: Path = ROOT) -> list[str]:
    """What is wrong with the checkout, before anything is built."""
    problems = []
    if changed := run("git", "status", "--porcelain", cwd=root):
        problems.append(f"uncommitted: {', '.join(changed.splitlines()[:5])}")
    if run("git", "tag", "--list", f"v{version}", cwd=root):
        problems.append(f"there is a tag v{version}: raise version in pyproject.toml")
    for file, pattern in (
        ("nip_core/distribution.py", rf'^__version__ = "{re.escape(version)}"$'),
        ("CITATION.cff", rf"^version: {re.escape(version)}$"),
        ("CHANGELOG.md", rf"^## {re.escape(version)}\b"),
    ):
        if not re.search(pattern, (root / file).read_text(encoding="utf-8"), re.MULTILINE):
            problems.append(f"{file}: does not name version {version}, as pyproject.toml does")
    current = subprocess.run(
        [sys.executable, "scripts/llms_txt.py", "--check"], cwd=root, check=False
    )
    if current.returncode:
        problems.append("llms.txt: not up to date")
    return problems


def build(place: Path, out: Path, python: str) -> tuple[Path, Path]:
    """Wheel and source distribution of what is committed, in `out`."""
    step("building")
    tools = environment(place / "tools", python, *TOOLS)
    sources = place / "sources"
    sources.mkdir()
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    ).stdout
    subprocess.run(["tar", "x"], cwd=sources, input=archive, check=True)
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("nip_loop-*"), *out.glob("SHA256SUMS")]:
        old.unlink()
    run(tools, "-m", "build", "--outdir", str(out), str(sources))  # the wheel is made of the sdist
    run(tools, "-m", "build", "--wheel", "--outdir", str(place / "direct"), str(sources))
    [wheel], [source] = [*out.glob("*.whl")], [*out.glob("*.tar.gz")]
    sums = (f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in (wheel, source))
    (out / "SHA256SUMS").write_text("".join(sums))
    return wheel, source


def file_problems(place: Path, wheel: Path, source: Path) -> list[str]:
    """What is wrong with the files."""
    step("checking the files")
    problems = []
    tools = str(place / "tools" / "bin" / "python")
    done = subprocess.run(
        [tools, "-m", "twine", "check", "--strict", wheel, source],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        problems.append(f"twine check: {done.stdout.strip()}")
    if (size := wheel.stat().st_size) > LARGEST_WHEEL:
        problems.append(f"{wheel.name}: {size:,} bytes, more than {LARGEST_WHEEL:,}")
    [direct] = (place / "direct").glob("*.whl")
    if names(wheel) != names(direct):
        missing = sorted(names(wheel) ^ names(direct))[:5]
        problems.append(f"{source.name}: makes another wheel than the tree: {missing}")
    with tarfile.open(source) as archive:
        tests = [name for name in archive.getnames() if "/tests/" in name]
    if tests:
        problems.append(f"{source.name}: has tests, which nothing there can run: {tests[0]}")
    return problems


def bare_problems(place: Path, wheel: Path, version: str, python: str) -> list[str]:
    """What does not work in an environment that has the wheel and what it asks for alone."""
    step("trying the wheel in an environment of its own")
    begin = time.monotonic()
    bare = environment(place / "bare", python, str(wheel))
    print(f"  installed in {time.monotonic() - begin:.0f} s", flush=True)
    empty = place / "empty"
    empty.mkdir()
    problems = []
    train = (
        "train deterministic --json --set rl.num_iterations=1 --set rl.rollouts_per_iteration=40"
    )
    for command, expected in (
        ("--version", f"nip {version}"),
        ("doctor", "can run: the engines deterministic"),
        ("init", "wrote experiment.yaml"),
        ("train experiment.yaml --dry-run", "nothing was started"),
        (train, '"status": "finished"'),
        ("ls", "deterministic"),
    ):
        begin = time.monotonic()
        done = subprocess.run(
            [str(Path(bare).with_name("nip")), *shlex.split(command)],
            cwd=empty,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        print(f"  nip {command}: {time.monotonic() - begin:.1f} s", flush=True)
        if done.returncode or expected not in done.stdout:
            said = (done.stderr or done.stdout).strip()[-500:]
            problems.append(f"nip {command}: exit {done.returncode}, without {expected!r}: {said}")
    return problems


def names(wheel: Path) -> set[str]:
    """The files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def environment(place: Path, python: str, *packages: str) -> str:
    """The interpreter of a new environment with these packages."""
    run(python, "-m", "venv", str(place))
    inside = str(place / "bin" / "python")
    options = shlex.split(os.environ.get("PIP_OPTIONS", ""))
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options)
    run(inside, *pip, *packages)
    return inside


def run(*command: str, cwd: Path | None = None) -> str:
    """The output of a command. Ends this program, with what it said, if it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def step(what: str) -> None:
    """Say what comes next."""
    print(f"{what} …", flush=True)


if __name__ == "__main__":
    main()
