"""The pieces of benchmarks/gpu_session.py."""
