"""The commands of `nip` over several runs."""
