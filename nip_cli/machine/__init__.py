"""The commands of `nip` about this machine: what runs here, and services that are started."""
