"""The command `nip grade`, which is that of the sandbox's own `nip-grade`."""

from nip_core.sandbox.grading.grading_command import grade

__all__ = ["grade"]
