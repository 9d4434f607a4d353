"""The stages of an iteration as plain functions, each idempotent by the keys of the run store.

session      what all stages of a run share in one process: settings, game, store, lease, client
preflight    everything that can be wrong before anything is spent
rollouts     play a shard, commit a stage
fine_tuning  build a dataset, submit its job, poll it, prove and swap the models
gate         whether new models play well enough to be swapped in
evaluation   metrics of what was played, the report

Prefect tasks wrap these one to one; a notebook can call them directly.
"""
