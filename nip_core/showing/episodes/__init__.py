"""The episodes of a run, found and taken away.

episode_index    all of them as columns
episode_filters  some of them, in an order
found_episodes   those that filters find in committed splits
episode_rows     with all texts; row_formats: as CSV and JSONL
notes            notes of people on them
"""
