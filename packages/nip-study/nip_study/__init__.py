"""Studies over runs: sweeps that are declared, attacks in rounds, comparisons with intervals."""
