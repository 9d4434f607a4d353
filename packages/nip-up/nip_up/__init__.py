"""PostgreSQL, Prefect's server and workers as processes of one command, `nip up`.

up          the command: what it starts, in order
parts       its processes, started again when they end
postgres    a database of the system's packages
"""
