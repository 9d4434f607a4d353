"""The command `nip`: its table of commands, their work, and their printing.

Other distributions add commands by `command_table`.

commands    those about a run and its data, and about this machine
launching   from a command to a flow: Prefect's server, signals, sessions
printing    terminals, tables, options that several commands have
"""
