"""From a command to a flow: sessions, Prefect's server, signals."""
