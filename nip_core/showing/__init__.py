"""A run for people and programs.

summary       a run as a JSON document, and its report; transcripts: episodes worth reading
finished      whether nothing is left to do; how_far: a run that was stopped
listing       all runs; run_tables: the tables of one, as Arrow
episode_index   its episodes as columns; kept_calls: what was written; episode_filters: some of them
found_episodes  those that filters find; episode_rows: with all texts; row_formats: CSV and JSONL
notes         what people have noted of episodes
asked_chats   the chat that an agent has seen, or would see
"""
