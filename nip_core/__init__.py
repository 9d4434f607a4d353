"""The library beneath nip: protocols, rollouts, datasets, jobs, run store. Never imports prefect."""

__version__ = "0.1.0"
