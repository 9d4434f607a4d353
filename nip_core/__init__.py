"""The library beneath nip: protocols, rollouts, datasets, jobs, runs. Never imports prefect."""

__version__ = "0.1.0"
