"""The parts of benchmarks/side_by_side.py."""
