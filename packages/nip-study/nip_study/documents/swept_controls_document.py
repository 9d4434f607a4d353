"""The part of ``results.json`` that holds attacked verifiers against the right numbers."""

from typing import Literal

from pydantic import Field

from nip_core.evaluation.split_metrics import Interval95
from nip_study.parts.document_parts import Part, is_none


class AttackedVerifier(Part):
    """The trained verifiers of an arm under an attack, or the untrained one."""

    arm: str
    attack: str
    """Its name in the sweep's file."""
    verifier: Literal["trained", "untrained"]
    runs: int
    """Finished attacks."""
    questions: int
    """Of wrong problems."""
    soundness: float
    soundness_ci95: Interval95 | None
    completeness: float | None
    completeness_ci95: Interval95 | None
    guaranteed: float | None = Field(default=None, exclude_if=is_none)
    """By a theorem, to a verifier that checks all it can; no key where there is none."""
    p: float | None = Field(default=None, exclude_if=is_none)
    """One-sided: of a soundness so low, if it is as guaranteed in truth."""
    p_holm: float | None = Field(default=None, exclude_if=is_none)
    """Adjusted for all tests of the table."""


class ScriptsLeftOut(Part):
    """The scripts that come with an arm's scenario, and were not played against it."""

    arm: str
    scripts: tuple[str, ...]


class AttackControls(Part):
    """Attacked verifiers beside the untrained one, and beside a theorem."""

    verifiers: tuple[AttackedVerifier, ...]
    """Each trained one, behind it the untrained one under the same attack, where it was played."""
    without_control: tuple[str, ...] = Field(default=(), exclude_if=lambda value: not value)
    """Arm and attack where it was not."""
    scripts_left_out: tuple[ScriptsLeftOut, ...] = Field(
        default=(), exclude_if=lambda value: not value
    )
