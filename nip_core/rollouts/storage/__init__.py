"""The files of a shard: a journal while it is played, tables afterwards.

journal         answers on disk before an episode goes on; journal_segments: the same in a bucket
schema          the columns of the tables; table_rows: rows as types
parquet         Arrow tables as files and back
tables          rows to a committed shard, shards to a split, and reading them
shard_manifests the names of a shard's documents
"""
