"""The pieces of `benchmarks/wrong_weights.py`: adapters, servers, and what is done to them."""
