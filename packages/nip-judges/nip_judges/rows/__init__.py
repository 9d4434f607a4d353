"""Graded rows: read, checked, and split into those for choosing and those of the test."""
