"""The server's version. A client attaches only to a server that reports this same one."""

SERVER_VERSION = "0.1.0"
STATE_FORMAT = 2
"""Layout of the state directory and of its database. Older ones are migrated, newer refused."""
