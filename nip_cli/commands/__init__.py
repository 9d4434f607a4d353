"""The commands of `nip` about one run and its data, one in a file."""
