"""Prefect flows: what happens, in which order. And the command `nip`, which may see everything."""
