"""Build a release of all distributions, check it, and tag it.

    python scripts/release.py           a dry run: everything but the tag
    python scripts/release.py --tag     the same, and the tag; nothing is uploaded
    python scripts/release.py --only nip-base,nip-sandbox    builds all, tries these two alone

What is checked:
    the tree          nothing uncommitted; each pyproject.toml, nip_core, CITATION.cff and
                      CHANGELOG.md name one version, of which there is no tag yet; each distribution
                      has the licence; llms.txt is up to date
    the files         a source distribution and a wheel of each distribution, built from what is
                      committed; all render (`twine check --strict`); no wheel is larger than its
                      limit, and each has the same files when built from the source distribution
    each wheel alone  in an environment of its own, which takes the other distributions from `dist/`
                      and all else from the package index: every module of it is imported, and the
                      blocks of its README that are marked `run` are, in an empty directory. What
                      only an extra brings may be missing; a block marked `run: extra=NAME` has it

`dist/` has the files then, with SHA256SUMS, and a table says what each brings with it. Tools are
installed into an environment of their own. `--python` names the interpreter of the environments,
PIP_OPTIONS has options for pip.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from doc_blocks import Block, blocks, make_script  # noqa: E402 - a file of this repository

ROOT_NAME = "nip-loop"
LARGEST = 1_000_000
"""Bytes of a wheel without a model."""
LARGEST_WITH_MODELS = {ROOT_NAME: 10_000_000, "nip-lm-server": 5_000_000}
"""See docs/decisions/0031-commands-and-wheel.md."""
TOOLS = ("build==1.6.1", "twine==7.0.0")
BLOCK_S = 900
TRAIN = "train deterministic --json --set rl.num_iterations=1 --set rl.rollouts_per_iteration=40"
COMMANDS = {
    ROOT_NAME: (
        ("nip --version", "nip {version}"),
        ("nip doctor", "can run: the engines deterministic"),
        ("nip init", "wrote experiment.yaml"),
        ("nip train experiment.yaml --dry-run", "nothing was started"),
        (f"nip {TRAIN}", '"status": "finished"'),
        ("nip ls", "deterministic"),
        ("nip report deterministic", "report.html"),
    ),
    "nip-lm-server": (("nip-lm-server --help", "Usage"),),
}
"""By distribution, commands and a word of what each prints; beside the blocks of its README."""
LOOK = """
import importlib, importlib.metadata as metadata, json, sys
name, passed_over = sys.argv[1], {"pip", "setuptools"}
sizes, failed, lacking = {}, [], []
for each in metadata.distributions():
    if (key := each.metadata["Name"].lower().replace("_", "-")) not in passed_over:
        sizes[key] = sum(file.size or 0 for file in each.files or ())
for file in metadata.distribution(name).files or ():
    if file.suffix != ".py" or file.stem in ("__main__", "sandbox_child"):
        continue
    module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    try:
        importlib.import_module(module)
    except ImportError as error:
        # An error of ours that says how to install stands behind that of Python.
        cause = error.__cause__ or error
        is_foreign = isinstance(cause, ModuleNotFoundError) and not cause.name.startswith("nip_")
        (lacking if is_foreign else failed).append(f"{module}: {error}")
    except Exception as error:
        failed.append(f"{module}: {type(error).__name__}: {error}")
print(json.dumps({"sizes": sizes, "failed": failed, "lacking": lacking}))
"""
"""What an environment has; and which modules of a distribution can't be imported there."""


@dataclass(frozen=True)
class Built:
    """A distribution and its files."""

    name: str
    wheel: Path
    source: Path


@dataclass(frozen=True)
class Trial:
    """What a wheel brings with it, and what did not work there."""

    brought: int
    megabytes: float
    seconds: float
    problems: Sequence[str]


def main() -> None:
    """Do all of it; the exit status is 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tag", action="store_true", help="tag the commit in the end")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory for the files")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environments")
    parser.add_argument("--only", default="", help="the distributions to try alone; default: all")
    options = parser.parse_args()
    out, names = options.out.absolute(), list_distributions()
    tried = options.only.split(",") if options.only else [*names]
    if unknown := {*tried} - {*names}:
        sys.exit(f"--only {', '.join(sorted(unknown))}: expected some of {', '.join(names)}")
    # 1. The tree.
    version = read_version(ROOT)
    problems = tree_problems(version)
    # 2. The files, and what each wheel is in an environment of its own.
    trials: dict[str, Trial] = {}
    with tempfile.TemporaryDirectory(prefix="nip-release-") as folder:
        place = Path(folder)
        built = build_all(place, out, options.python)
        problems += file_problems(place, built)
        for name in tried:
            trials[name] = try_alone(place / name, name, version, out, options.python)
            problems += [f"{name} alone: {problem}" for problem in trials[name].problems]
    # 3. The verdict.
    print("\n".join(list_rows(built, trials)))
    if problems:
        sys.exit("\n".join(["not released:", *(f"  {problem}" for problem in problems)]))
    if options.tag and not options.only:
        run("git", "tag", "--annotate", f"v{version}", "--message", f"nip {version}", cwd=ROOT)
        print(f"tagged v{version}; push the tag and upload {out} where it belongs")
    else:
        print(f"all is well; --tag would make the tag v{version}")


def list_distributions(root: Path = ROOT) -> dict[str, Path]:
    """The folders of all distributions by their names, those that need nothing else first."""
    folders = {path.parent.name: path.parent for path in root.glob("packages/*/pyproject.toml")}
    first = ("nip-base", "nip-sandbox", "nip-lm-server")
    names = sorted(folders, key=lambda name: (name not in first, name))
    return {name: folders[name] for name in names} | {ROOT_NAME: root}


def read_version(folder: Path) -> str:
    """The version that the pyproject.toml of a folder names."""
    return str(tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"])


def tree_problems(version: str, root: Path = ROOT) -> list[str]:
    """What is wrong with the checkout, before anything is built."""
    problems = []
    if changed := run("git", "status", "--porcelain", cwd=root):
        problems.append(f"uncommitted: {', '.join(changed.splitlines()[:5])}")
    if run("git", "tag", "--list", f"v{version}", cwd=root):
        problems.append(f"there is a tag v{version}: raise version in every pyproject.toml")
    for file, pattern in (
        ("nip_core/distribution.py", rf'^__version__ = "{re.escape(version)}"$'),
        ("packages/nip-base/nip_base/version.py", rf'^SERVER_VERSION = "{re.escape(version)}"$'),
        ("CITATION.cff", rf"^version: {re.escape(version)}$"),
        ("CHANGELOG.md", rf"^## {re.escape(version)}\b"),
    ):
        if not re.search(pattern, (root / file).read_text(encoding="utf-8"), re.MULTILINE):
            problems.append(f"{file}: does not name version {version}, as pyproject.toml does")
    for name, folder in list_distributions(root).items():
        if (other := read_version(folder)) != version:
            problems.append(f"{name}: its pyproject.toml has version {other}, the root's {version}")
        if (folder / "LICENSE").read_bytes() != (root / "LICENSE").read_bytes():
            problems.append(f"{name}: its LICENSE is not the root's")
    current = subprocess.run(
        [sys.executable, "scripts/llms_txt.py", "--check"], cwd=root, check=False
    )
    if current.returncode:
        problems.append("llms.txt: not up to date")
    return problems


def build_all(place: Path, out: Path, python: str) -> list[Built]:
    """Wheels and source distributions of what is committed, in `out`."""
    step("building")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    [backend] = re.findall(r"^setuptools==\S+$", pins, re.MULTILINE)
    tools = environment(place / "tools", python, *TOOLS, backend)
    sources = place / "sources"
    sources.mkdir()
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    ).stdout
    subprocess.run(["tar", "x"], cwd=sources, input=archive, check=True)
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("nip_*"), *out.glob("SHA256SUMS")]:
        old.unlink()
    built = []
    for name, folder in list_distributions(sources).items():
        # Without isolation, as the tools have the backend. The wheel is made of the sdist.
        make = (tools, "-m", "build", "--no-isolation")
        run(*make, "--outdir", str(out), str(folder))
        run(*make, "--wheel", "--outdir", str(place / "direct"), str(folder))
        stem = name.replace("-", "_")
        [wheel], [source] = [*out.glob(f"{stem}-*.whl")], [*out.glob(f"{stem}-*.tar.gz")]
        built.append(Built(name, wheel, source))
    files = sorted(file for each in built for file in (each.wheel, each.source))
    sums = (f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in files)
    (out / "SHA256SUMS").write_text("".join(sums))
    return built


def file_problems(place: Path, built: Sequence[Built]) -> list[str]:
    """What is wrong with the files."""
    step("checking the files")
    problems = []
    done = subprocess.run(
        [
            *(str(place / "tools" / "bin" / "python"), "-m", "twine", "check", "--strict"),
            *(file for each in built for file in (each.wheel, each.source)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        problems.append(f"twine check: {done.stdout.strip()}")
    for each in built:
        most = LARGEST_WITH_MODELS.get(each.name, LARGEST)
        if (size := each.wheel.stat().st_size) > most:
            problems.append(f"{each.wheel.name}: {size:,} bytes, more than {most:,}")
        inside, direct = names(each.wheel), names(place / "direct" / each.wheel.name)
        if inside != direct:
            missing = sorted(inside ^ direct)[:5]
            problems.append(f"{each.source.name}: makes another wheel than the tree: {missing}")
        if not any(name.endswith(".dist-info/licenses/LICENSE") for name in inside):
            problems.append(f"{each.wheel.name}: has no LICENSE")
        with tarfile.open(each.source) as archive:
            tests = [name for name in archive.getnames() if "/tests/" in name]
        if tests:
            problems.append(f"{each.source.name}: has tests, which nothing there runs: {tests[0]}")
    return problems


def try_alone(place: Path, name: str, version: str, out: Path, python: str) -> Trial:
    """Install a wheel where nothing else is, and use it as its README says."""
    step(f"trying {name} in an environment of its own")
    begin = time.monotonic()
    here = ("--find-links", str(out))
    inside = environment(place / "environment", python, *here, f"{name}=={version}")
    seconds = time.monotonic() - begin
    empty = place / "empty"
    empty.mkdir()
    found = json.loads(run(inside, "-c", LOOK, name, cwd=empty))
    sizes: Mapping[str, int] = found["sizes"]
    print(f"  {len(found['lacking'])} modules need an extra, or another program", flush=True)
    problems = [*found["failed"]]
    readme = list_distributions()[name] / "README.md"
    marked = [] if name == ROOT_NAME else [b for b in blocks(readme) if b.mark == "run"]
    commands = COMMANDS.get(name, ())
    if not marked and not commands:
        problems.append("its README has no block that is marked to be run")
    if extras := {block.options["extra"] for block in marked if "extra" in block.options}:
        install(inside, *here, f"{name}[{','.join(sorted(extras))}]=={version}")
    for command, expected in commands:
        problems += command_problems(inside, empty, command, expected.format(version=version))
    if marked:
        problems += readme_problems(inside, empty, marked)
    shutil.rmtree(place)
    return Trial(len(sizes) - 1, sum(sizes.values()) / 1e6, seconds, problems)


def command_problems(inside: str, folder: Path, command: str, expected: str) -> list[str]:
    """What is wrong with a command that prints `expected`."""
    begin = time.monotonic()
    done = call([str(Path(inside).parent / shlex.split(command)[0]), *shlex.split(command)[1:]],
                inside, folder)  # fmt: skip
    print(f"  {command}: {time.monotonic() - begin:.1f} s", flush=True)
    if done.returncode or expected not in done.stdout:
        said = (done.stderr or done.stdout).strip()[-500:]
        return [f"{command}: exit {done.returncode}, without {expected!r}: {said}"]
    return []


def readme_problems(inside: str, folder: Path, marked: Sequence[Block]) -> list[str]:
    """What is wrong with the blocks of a README, run one after another in one shell."""
    begin = time.monotonic()
    done = call(["bash", "-c", make_script(marked, folder)], inside, folder)
    print(f"  README.md, {len(marked)} blocks: {time.monotonic() - begin:.1f} s", flush=True)
    if done.returncode:
        return [f"README.md: exit {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"]
    return []


def call(command: Sequence[str], inside: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with the environment of `inside`; end what it left running."""
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environ |= {"PATH": f"{Path(inside).parent}{os.pathsep}{os.environ['PATH']}"}
    environ |= {"PREFECT_HOME": str(folder / ".prefect")}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=BLOCK_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def list_rows(built: Sequence[Built], trials: Mapping[str, Trial]) -> Iterator[str]:
    """The table of all distributions."""
    yield f"{'distribution':<16}{'wheel MB':>10}{'brings':>8}{'on disk MB':>12}{'installed s':>13}"
    for each in built:
        size = f"{each.wheel.stat().st_size / 1e6:.2f}"
        trial = trials.get(each.name)
        facts = ("", "", "") if trial is None else (
            str(trial.brought), f"{trial.megabytes:.0f}", f"{trial.seconds:.0f}")  # fmt: skip
        yield f"{each.name:<16}{size:>10}{facts[0]:>8}{facts[1]:>12}{facts[2]:>13}"


def names(wheel: Path) -> set[str]:
    """The files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def environment(place: Path, python: str, *packages: str) -> str:
    """The interpreter of a new environment with these packages."""
    run(python, "-m", "venv", str(place))
    inside = str(place / "bin" / "python")
    install(inside, *packages)
    return inside


def install(inside: str, *packages: str) -> None:
    """Install packages into the environment of an interpreter."""
    options = shlex.split(os.environ.get("PIP_OPTIONS", ""))
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options)
    run(inside, *pip, *packages)


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
