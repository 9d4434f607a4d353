"""Prefect flows: what happens, in which order."""
