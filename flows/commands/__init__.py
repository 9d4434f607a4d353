"""The commands of `nip` that are about runs, one in a file; `command_table` lists them all."""
