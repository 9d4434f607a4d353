"""Checks that decide without a model whether a response is right."""
