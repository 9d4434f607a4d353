"""Sweeps: many runs that differ in a few settings, and one table of them all.

plan       the runs of a sweep, from its file
results    what came of them, as a table, a document and a figure
"""
