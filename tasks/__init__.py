"""Prefect tasks, one file per stage. Each wraps one function of `nip_core.stages`.

A task's parameters and result are plain JSON: names, numbers and digests of committed files.
What a stage needs besides (clients, keys, open files) is held by the process, see `runtime`.
"""
