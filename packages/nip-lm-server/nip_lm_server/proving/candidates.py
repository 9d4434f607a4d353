"""The models that may answer under a name: directories of adapters, and their probes.

Candidate          a directory, with its probe if it has one
read_candidate     read a directory, or refuse one that is no adapter
compute_probes     compute missing probes, on this machine's processor
find_candidates    the adapters among the directories in a directory, by name

A directory with a probe needs no weights: answers are compared with ``probe.json``. A probe that is
saved here has the digest of its weights, and is refused beside other weights.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nip_base.formats.bounds import ReadError, parse_json
from nip_lm_server.engines.base import EngineError
from nip_lm_server.lora.adapter_files import is_unchanged, read_adapter
from nip_lm_server.lora.probes import PROBE, Probe, ProbeError, parse_probe, read_probe
from nip_lm_server.proving.stranger import InputError

CONFIG = "adapter_config.json"
_DIGEST = "adapter_digest"


class ProbeMissingError(InputError):
    """A directory has no probe, and none can be computed here."""


@dataclass(frozen=True)
class Candidate:
    """A directory of an adapter that may answer under a name."""

    path: Path
    probe: Probe | None
    digest: str | None = None
    """The digest of its weights and their settings; None: it has a probe only."""
    base: str | None = None
    """Its base model, by PEFT's file."""
    is_unchanged: bool = False
    """Whether its training has reported that it changed nothing."""
    probe_digest: str | None = None
    """The digest of the weights that the probe was computed from; None: the probe has none."""

    @property
    def note(self) -> str | None:
        """The limit of a proof by this probe; None: there is none."""
        if self.digest is None or self.probe is None or self.probe_digest is not None:
            return None
        return f"{PROBE} doesn't say that it is of the weights beside it; --compute goes by these"


def read_candidate(path: Path) -> Candidate:
    """Read a directory. Raises InputError if it is no adapter, or its probe can't be read."""
    try:
        return _read_candidate(path)
    except OSError as error:
        raise InputError(f"{_cut(path)}: it can't be read: {error.strerror}") from None


def _cut(path: Path) -> str:
    """Cut a path for a message."""
    return str(path)[:240]


def _read_candidate(path: Path) -> Candidate:
    if not path.is_dir():
        raise InputError(f"{path}: there is no such directory; give that of an adapter")
    has_config, has_probe = (path / CONFIG).is_file(), (path / PROBE).is_file()
    if not has_config and not has_probe:
        raise InputError(
            f"{path}: no adapter: it has neither {CONFIG}, as PEFT writes it, nor {PROBE}"
        )
    digest = base = probe_digest = None
    if has_config and ((path / "adapter_model.safetensors").is_file() or not has_probe):
        try:
            digest = read_adapter(path).digest
        except EngineError as error:
            raise InputError(" ".join(str(error).split())) from None
    try:
        probe = read_probe(path) if has_probe else None
        if has_probe:
            digest_in_probe = parse_json((path / PROBE).read_text()).get(_DIGEST)
            probe_digest = digest_in_probe if isinstance(digest_in_probe, str) else None
        if has_config:
            base_name = parse_json((path / CONFIG).read_text()).get("base_model_name_or_path")
            base = base_name if isinstance(base_name, str) else None
    except (ProbeError, ReadError, OSError, AttributeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: no adapter: {' '.join(str(error).split())}") from None
    return Candidate(path, probe, digest, base, is_unchanged(path), probe_digest)


def find_candidates(place: Path) -> dict[str, Candidate]:
    """Read all adapters in the directories of `place`, by the directories' names."""
    try:
        return _find_candidates(place)
    except OSError as error:
        raise InputError(f"{_cut(place)}: it can't be read: {error.strerror}") from None


def _find_candidates(place: Path) -> dict[str, Candidate]:
    if not place.is_dir():
        raise InputError(f"{place}: there is no such directory; give one with adapters in it")
    folders = sorted(path for path in place.iterdir() if path.is_dir())
    adapters = {
        path.name: read_candidate(path)
        for path in folders
        if (path / CONFIG).is_file() or (path / PROBE).is_file()
    }
    if not adapters:
        raise InputError(f"{place}: none of its {len(folders)} directories is an adapter")
    return adapters


def compute_probes(
    candidates: Iterable[Candidate],
    base_model: str | None,
    resolve: Callable[[str], str],
    *,
    computes_again: bool,
    save: bool,
) -> Iterator[Candidate]:
    """Yield the candidates with their probes: compute those missing; all, with `computes_again`.

    `base_model` is a directory, a name on the Hub, or a name that `resolve` knows; None: the base
    that each candidate names. With `save` a computed probe is written into the directory. Raises
    InputError, and ModuleNotFoundError where torch is missing.
    """
    loaded: dict[str, Any] = {}
    for candidate in candidates:
        if candidate.probe is not None and not computes_again:
            _check_tied(candidate)
            yield candidate
            continue
        base = base_model or candidate.base
        if base is None:
            raise ProbeMissingError(
                f"{candidate.path}: it has no {PROBE}, and nothing says over which base model one "
                "could be computed; give its directory with --base"
            )
        from nip_lm_server.lora.public_probe import PublicProbes

        try:
            if base not in loaded:
                loaded[base] = PublicProbes(resolve(base))
            document = loaded[base].compute(candidate.path)
            probe = parse_probe(document, candidate.path / PROBE)
        except ModuleNotFoundError:
            raise
        # safetensors, tokenizers and the Hub have their own exception classes.
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:240]
            raise ProbeMissingError(
                f"{candidate.path}: no probe can be computed over the base model {base!r}: {reason}"
            ) from None
        if save:
            _write(candidate.path / PROBE, {**document, _DIGEST: candidate.digest})
        yield replace(candidate, probe=probe, probe_digest=candidate.digest)


def _check_tied(candidate: Candidate) -> None:
    """Raise InputError if a probe has the digest of other weights than the candidate's."""
    if None not in (candidate.digest, candidate.probe_digest) and (
        candidate.digest != candidate.probe_digest
    ):
        raise InputError(
            f"{candidate.path}: {PROBE} is of other weights or settings than the "
            "adapter_model.safetensors and adapter_config.json beside it; compute it again with "
            "--compute --save-probe"
        )


def _write(path: Path, document: dict[str, Any]) -> None:
    """Write a probe in one step: a half-written one would get the directory refused."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        part.write_text(json.dumps(document))
        os.replace(part, path)
    except OSError as error:
        raise InputError(f"{path} can't be written: {error.strerror}") from None
