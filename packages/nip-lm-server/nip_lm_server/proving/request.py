"""The request for a proof of served names, and the verdicts as they come.

ProofRequest   a server, names, directories, and facts about them
prove_served   the verdicts, one after another
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nip_lm_server.proving.candidates import (
    Candidate,
    compute_probes,
    find_candidates,
    read_candidate,
)
from nip_lm_server.proving.prove import REPEATS, NameChecker, ProofSettings
from nip_lm_server.proving.stranger import InputError, ServedName, Stranger
from nip_lm_server.proving.verdict import Verdict, list_names
from nip_lm_server.proving.without_files import compare_with_base

_TINKER = "tinker://"


@dataclass(frozen=True)
class ProofRequest:
    """A proof of `model` by `directory`, or of all adapters in `all_in`."""

    address: str
    model: str | None = None
    directory: Path | None = None
    """None: the directory that the server has loaded the model from, if it is on this machine."""
    all_in: Path | None = None
    among: tuple[Path, ...] = ()
    """Directories that the answers are compared with, too; a verdict names one that agrees."""
    key: str = ""
    proxy: str | None = None
    base_model: str | None = None
    """Directory or name of the base model for probes that are computed here."""
    resolve_base: Callable[[str], str] = str
    """Finds the directory of a base model that has another name on this machine."""
    base_name: str | None = None
    """The name under which the server has the base model."""
    dtype: str | None = None
    quantization: str = "none"
    repeats: int = REPEATS
    computes_again: bool = False
    """Whether probes are computed even where directories have them."""
    saves_probes: bool = False
    timeout_s: float = 120.0


async def prove_served(request: ProofRequest) -> AsyncIterator[Verdict]:
    """Prove each name. Raises ProvingError, and ModuleNotFoundError where torch is missing."""
    # 1. Read the directories: errors in them are raised before the first request.
    candidates = find_candidates(request.all_in) if request.all_in else {}
    if request.directory is not None and request.model is not None:
        candidates = {request.model: read_candidate(request.directory)}
    among = [read_candidate(path) for path in request.among]
    settings = ProofSettings(
        request.base_name, request.dtype, request.quantization, request.repeats
    )
    async with Stranger(
        request.address, request.key, proxy=request.proxy, timeout_s=request.timeout_s
    ) as server:
        # 2. Get the names from the server.
        notes: tuple[str, ...] = ()
        names = await server.list_models()
        if request.model is not None:
            _check_served(names, request.model)
            if request.model not in names:
                names[request.model] = ServedName(request.model, is_adapter=True)
            if not candidates and (candidate := _find_root(names[request.model])) is not None:
                candidates = {request.model: candidate}
                notes = (f"the server named the directory, {candidate.path}",)
            if not candidates:
                yield await compare_with_base(
                    server,
                    names,
                    request.model,
                    base_name=request.base_name,
                    repeats=request.repeats,
                )
                return
        # 3. Compute missing probes, and prove one name after another.
        completed = _complete(request, [*candidates.values(), *among])
        candidates = dict(zip(candidates, completed, strict=False))
        among = completed[len(candidates) :]
        prover = NameChecker(server, names, settings)
        for directory_name, candidate in candidates.items():
            name = directory_name if request.all_in is None else _served_as(names, directory_name)
            if name is None:
                says = f"the server has no model of this name; it has {list_names(names)}"
                yield Verdict(directory_name, "not_served", says)
                continue
            suspects = [suspect for suspect in candidates.values() if suspect is not candidate]
            verdict = await prover.prove(name, candidate, among, suspects)
            all_notes = (*verdict.notes, *notes, *filter(None, [candidate.note]))
            yield replace(verdict, notes=all_notes)


def _check_served(names: dict[str, ServedName], model: str) -> None:
    # Weights that a client of Tinker's API has saved answer under their address, but no server
    # lists them.
    if model not in names and not model.startswith(_TINKER):
        raise InputError(f"the server has no model {model!r}; it has {list_names(names)}")


def _find_root(model: ServedName) -> Candidate | None:
    """Read the directory that a server has loaded a model from; None: it is not on this machine.

    A relative path is not used: it would depend on the directory that the command runs in.
    """
    if not model.is_adapter or model.root is None or not Path(model.root).is_absolute():
        return None
    try:
        is_here = Path(model.root).is_dir()
    # It is too long for a path, has a NUL, or lies in a directory that is closed to this user.
    except (OSError, ValueError):
        return None
    return read_candidate(Path(model.root)) if is_here else None


def _complete(request: ProofRequest, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Compute the missing probes."""
    return list(
        compute_probes(
            candidates,
            request.base_model,
            request.resolve_base,
            computes_again=request.computes_again,
            save=request.saves_probes,
        )
    )


def _served_as(names: dict[str, ServedName], directory_name: str) -> str | None:
    """Find the served name of a directory's adapter: the same, or nip's, which ends with it."""
    if directory_name in names:
        return directory_name
    return next((name for name in names if name.endswith(f":{directory_name}")), None)
