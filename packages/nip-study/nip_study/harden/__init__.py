"""Rounds of attacks on a verifier and of training it on, and their results."""
