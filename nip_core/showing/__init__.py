"""A run for people and programs.

summary       a run as a JSON document, and its report; transcripts: episodes worth reading
finished      whether nothing is left to do; how_far: a run that was stopped
listing       all runs; run_tables: the tables of one, as Arrow
episode_index the episodes of a run as columns in memory; kept_calls: what was written in them
asked_chats   the chat that an agent has seen, or would see
"""
