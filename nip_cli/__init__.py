"""The command `nip`: its table of commands, their work, and their printing.

commands    those about a run, and about its data
studies     those about many runs: sweeps, declarations, hardening, comparisons
serving     models: brought here, served, proved
machine     what this machine can run, and the services on it
launching   from a command to a flow: Prefect's server, signals, sessions
printing    terminals, tables, options that several commands have
"""
