"""Prefect's part around the calls of `nip_core.loop`: task runs, artifacts, marks, keys.

A task's parameters and result are plain JSON: names, numbers and digests of committed files.
What a stage needs besides (clients, keys, open files) is held by the process, see `runtime`.
"""
