"""Agents and trainer adapters for programs without a run."""
