"""What a caller wants proved, and the verdicts as they come.

ProofRequest   a server, names, directories, and what is known of both
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
    """None: where the server says that it has loaded the model from, if that is here."""
    all_in: Path | None = None
    among: tuple[Path, ...] = ()
    """Directories from which it is to be told, and by which another one is named."""
    key: str = ""
    proxy: str | None = None
    base_model: str | None = None
    """Directory or name of the base model, where probes are computed."""
    resolve_base: Callable[[str], str] = str
    """Finds the directory of a base model that has another name here."""
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
    # 1. What is wrong here is said before anybody is asked.
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
        # 2. The names, as the server has them.
        notes: tuple[str, ...] = ()
        names = await server.list_models()
        if request.model is not None:
            _check_served(names, request.model)
            if request.model not in names:
                names[request.model] = ServedName(request.model, is_adapter=True)
            if not candidates and (found := _find_root(names[request.model])) is not None:
                candidates = {request.model: found}
                notes = (f"the server named the directory, {found.label}",)
            if not candidates:
                yield await compare_with_base(
                    server,
                    names,
                    request.model,
                    base_name=request.base_name,
                    repeats=request.repeats,
                )
                return
        # 3. Probes, and one name after another.
        completed = _complete(request, [*candidates.values(), *among])
        candidates = dict(zip(candidates, completed, strict=False))
        among = completed[len(candidates) :]
        prover = NameChecker(server, names, settings)
        for called, candidate in candidates.items():
            name = called if request.all_in is None else _served_as(names, called)
            if name is None:
                says = f"the server has no model of this name; it has {list_names(names)}"
                yield Verdict(called, "not_served", says)
                continue
            suspects = [other for other in candidates.values() if other is not candidate]
            verdict = await prover.prove(name, candidate, among, suspects)
            said = (*verdict.notes, *notes, *filter(None, [candidate.note]))
            yield replace(verdict, notes=said)


def _check_served(names: dict[str, ServedName], model: str) -> None:
    # Weights that a client of Tinker's API has saved answer by their address, which no list has.
    if model not in names and not model.startswith(_TINKER):
        raise InputError(f"the server has no model {model!r}; it has {list_names(names)}")


def _find_root(served: ServedName) -> Candidate | None:
    """Read the directory from which a server says that it has loaded a model; None: not here.

    A relative one would be of whatever directory the command runs in.
    """
    if not served.is_adapter or served.root is None or not Path(served.root).is_absolute():
        return None
    try:
        is_here = Path(served.root).is_dir()
    # Too long for a path, a NUL in it, or in a directory that is closed to this user.
    except (OSError, ValueError):
        return None
    return read_candidate(Path(served.root)) if is_here else None


def _complete(request: ProofRequest, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Compute the probes that are missing."""
    return list(
        compute_probes(
            candidates,
            request.base_model,
            request.resolve_base,
            again=request.computes_again,
            save=request.saves_probes,
        )
    )


def _served_as(names: dict[str, ServedName], called: str) -> str | None:
    """Find the name of a directory's adapter: its own, or that of nip's server, which ends so."""
    if called in names:
        return called
    return next((name for name in names if name.endswith(f":{called}")), None)
