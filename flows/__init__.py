"""Prefect flows: the steps of a run, in their order."""
