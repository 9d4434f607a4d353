"""The commands of `nip` about many runs: sweeps, declarations, hardening, comparisons."""
