"""Graded rows: read from a file, checked, and split into those for choosing and those of the test."""
