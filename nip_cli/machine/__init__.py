"""The commands of `nip` about this machine: a look at it, and services that are started."""
