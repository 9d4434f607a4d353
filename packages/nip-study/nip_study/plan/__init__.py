"""The runs of a sweep and its attacks: which there are, and the needs of each."""
