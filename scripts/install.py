"""Install nip and its extras beside this interpreter: `make install`, `make quickstart`.

All distributions of this checkout are installed in place, as one of them alone would look for the
others on an index. Without pip in the environment uv does it, which makes environments without.

With the extra `local` torch is installed first. On Linux, where no NVIDIA GPU is seen and
TORCH_INDEX has it, that is the build without CUDA (0.2 GB to download, not 3). TORCH_INDEX is asked
once, for at most `ANSWER_S`. Else torch is what pip finds.
Where pip is told where packages come from, by its configuration or by PIP_OPTIONS, that holds and
nobody else is asked. An index that PIP_OPTIONS adds and that does not answer is left out: pip would
ask it again and again for every package, for 20 minutes in all.

    python scripts/install.py                       nip without extras, and without torch
    python scripts/install.py [--quiet] local,dev

TORCH_INDEX   where the build without CUDA is looked for; empty: nowhere
PIP_OPTIONS   more options for pip, as a shell writes them
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
ANSWER_S = 5.0
BACKEND = "setuptools>=77"
_PYPI = "https://pypi.org/simple"
_EXTRA_INDEX = "--extra-index-url"
_SOURCES = ("-i", "--index-url", _EXTRA_INDEX, "-f", "--find-links", "--no-index")
_NVIDIA = ("proc/driver/nvidia/version", "dev/nvidia0", "dev/nvidiactl")
_GB = 1e9


def answers(url: str, certificates: str | None = None, within_s: float = ANSWER_S) -> int | None:
    """Ask once, by HEAD; return the HTTP status, None if there is none after `within_s` seconds."""
    found: list[int] = []

    def ask() -> None:
        try:
            context = ssl.create_default_context(cafile=certificates)
            request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - the user names it
            with urllib.request.urlopen(  # noqa: S310
                request, timeout=within_s, context=context
            ) as response:
                found.append(response.status)
        except urllib.error.HTTPError as error:
            found.append(error.code)
        except (OSError, ValueError):
            pass  # none, which is what the caller hears

    # Not by the timeout alone, which bounds neither looking up a name nor an answer in many drops.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(within_s)
    return found[0] if found else None


def has_nvidia(root: Path = Path("/")) -> bool:
    """Say whether this machine has an NVIDIA GPU's driver."""
    return any((root / file).exists() for file in _NVIDIA) or bool(shutil.which("nvidia-smi"))


def find_installer() -> list[str]:
    """Return the words that install packages. Ends this program where nothing can."""
    if has_pip():
        # It compiles one file after the other; `compile_all` does it on all cores.
        pip_words = [sys.executable, "-m", "pip", "install", "--no-compile"]
        return [*pip_words, "--disable-pip-version-check"]
    if (uv := shutil.which("uv")) is not None:
        return [uv, "pip", "install", "--python", sys.executable]
    raise SystemExit(f"nip: {sys.executable} has no pip: {sys.executable} -m ensurepip")


def has_pip() -> bool:
    """Say whether pip is beside this interpreter; uv makes environments without."""
    return importlib.util.find_spec("pip") is not None


def pip_configuration() -> dict[str, str]:
    """What files and the environment tell pip or uv, by option; the later of two holds."""
    if not has_pip():
        index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL")
        return {"index-url": index} if index else {}
    command = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    pairs = (line.partition("=") for line in lines)
    return {
        key.rpartition(".")[2].lower(): value.strip().strip("'\"")
        for key, _, value in pairs
        if key.partition(".")[0] in ("global", "install", ":env:")
    }


def without_silent(options: Sequence[str]) -> list[str]:
    """Pip's options without the additional indexes that do not answer, each of which is named."""
    kept: list[str] = []
    rest = iter(options)
    for word in rest:
        name, equals, url = word.partition("=")
        if name != _EXTRA_INDEX:
            kept.append(word)
            continue
        url = url if equals else next(rest, "")
        if url.startswith(("http://", "https://")) and answers(url) is None:
            say(f"{url} of PIP_OPTIONS does not answer and is left out")
        else:
            kept += [_EXTRA_INDEX, url]
    return kept


def why_not_small(
    index: str, options: Sequence[str], configured: Mapping[str, str], has_gpu: bool
) -> str | None:
    """Say why torch is what pip finds by itself; None if `index` has the build without CUDA."""
    if sys.platform != "linux":
        return "the package index has no CUDA for this system"
    if has_gpu:
        return "there is an NVIDIA GPU"
    if not index:
        return "TORCH_INDEX is empty"
    if any(option.partition("=")[0] in _SOURCES for option in options):
        return "PIP_OPTIONS says where packages come from"
    own = configured.get("index-url", _PYPI).rstrip("/") != _PYPI
    if own or configured.get("no-index", "false").lower() not in ("false", "0", "no", "off"):
        return "pip's configuration says where packages come from"
    status = answers(f"{index.rstrip('/')}/torch/", configured.get("cert"))
    if status is None:
        return f"{index} does not answer"
    return None if status == 200 else f"{index} answers {status}"


def install_torch(index: str, options: Sequence[str], quiet: bool, has_gpu: bool) -> None:
    """Install the torch of constraints.txt, if it is not there."""
    [version] = re.findall(r"^torch==(\S+)$", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    if installed("torch").partition("+")[0] == version:
        return
    torch = f"torch=={version}"
    why = why_not_small(index, options, pip_configuration(), has_gpu)
    if why is None:
        say(f"1 of 3, torch without CUDA, from {index}: 0.2 GB to download")
        # Nothing else from there, and nothing asked twice: it has just answered.
        once = ["--retries", "0", "--timeout", "15"] if has_pip() else []
        only = ["--index-url", index, "--no-deps", *once]
        if pip([*only, *options], [torch], quiet) == 0:
            return
        why = f"pip got none from {index}"
    say(f"1 of 3, torch as pip finds it, as {why}: 0.2 GB to download, or some 3 with CUDA")
    check_pip(options, [torch], quiet)


def pip(options: Sequence[str], what: Sequence[str], quiet: bool) -> int:
    """Install what is named, and return pip's exit status."""
    command = [*find_installer(), *(["--quiet"] if quiet else [])]
    command += [*options, "-c", str(CONSTRAINTS)]
    return subprocess.run([*command, *what], check=False).returncode


def check_pip(options: Sequence[str], what: Sequence[str], quiet: bool) -> None:
    """Install what is named. Ends this program with pip's status, if that is not 0."""
    if status := pip(options, what, quiet):
        raise SystemExit(status)


def list_editable(extras: str) -> list[str]:
    """List the checkout's distributions as pip's arguments, the root with its extras first.

    Behind a part that needs the root, pip would look on an index for the root without extras.
    """
    folders = [*sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))]
    root = f"{ROOT}[{extras}]" if extras else str(ROOT)
    return [word for place in (root, *map(str, folders)) for word in ("-e", place)]


def compile_all() -> None:
    """Compile all modules; what can't be compiled is no module of ours, and no matter."""
    command = [sys.executable, "-m", "compileall", "-qq", "-j", "0"]
    command += ["--invalidation-mode", "timestamp", str(Path(sys.prefix) / "lib")]
    subprocess.run(command, check=False)


def installed(name: str) -> str:
    """Return the version of a distribution in this environment; "" if it is not there."""
    importlib.invalidate_caches()
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def sizes() -> Iterator[tuple[str, int]]:
    """Give each distribution in this environment, and its size in bytes."""
    for distribution in importlib.metadata.distributions():
        files = distribution.files or ()
        yield distribution.metadata["Name"].lower(), sum(file.size or 0 for file in files)


def say(text: str) -> None:
    """Print a line of ours between those of pip."""
    print(f"nip: {text}", flush=True)


def main() -> None:
    """Install torch where it is wanted, then the rest, then compile it all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("extras", nargs="?", default="", help="of nip, as local,dev")
    parser.add_argument("--quiet", action="store_true", help="pip says nothing but errors")
    arguments = parser.parse_args()
    options = without_silent(shlex.split(os.environ.get("PIP_OPTIONS", "")))
    steps = 2
    if "local" in arguments.extras.split(","):
        steps = 3
        index = os.environ.get("TORCH_INDEX", TORCH_INDEX)
        install_torch(index, options, arguments.quiet, has_nvidia())
    say(f"{steps - 1} of {steps}, all else that nip uses: some 130 packages, 0.2 GB to download")
    check_pip([*options, "--no-deps"], [BACKEND], arguments.quiet)
    # Without build isolation: pip would make an environment for each of the distributions.
    check_pip([*options, "--no-build-isolation"], list_editable(arguments.extras), arguments.quiet)
    say(f"{steps} of {steps}, compiling, for up to a minute")
    compile_all()
    taken = dict(sizes())
    cuda = sum(size for name, size in taken.items() if name.startswith(("nvidia-", "triton")))
    if torch := installed("torch"):
        what = f"and {cuda / _GB:.1f} GB of CUDA" if cuda else "without CUDA"
        say(f"torch {torch}, {taken['torch'] / _GB:.1f} GB on disk, {what}")
    say(f"{sum(taken.values()) / _GB:.1f} GB in all in {sys.prefix}, before compiling")


if __name__ == "__main__":
    main()
