"""Prefect's part around the calls of `nip_core.loop`: task runs, artifacts, marks, keys.

A task's parameters and result are plain JSON: names, numbers and digests of committed files.
A stage's other needs (clients, keys, open files) are held by the process, see `runtime`.
"""
