"""Runs side by side, of one sweep or of none."""
