"""The end of a process with its caller, by the name under which processes of runs ask for it."""

from nip_base.machine.mapping import end_with

__all__ = ["end_with"]
