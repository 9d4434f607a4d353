"""A look at the machine, and PostgreSQL, Prefect's server and workers by one command.

doctor      the command `nip doctor`; doctor_checks: its findings
up          the command, with its parts in order
parts       its processes, started again when they end
postgres    a database of the system's packages
"""
