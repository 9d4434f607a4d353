"""The command `nip view`."""
