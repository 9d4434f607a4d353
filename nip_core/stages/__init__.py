"""The stages of an iteration as plain functions, each idempotent by the keys of the run store.

prepare     everything that is checked before anything is held or started
session     what all stages of a run share in one process: settings, game, store, lease, client
playing     a split: its plan, its shards, its commit
measuring   metrics and transcripts of a split
choosing    from rollouts to the dataset of a job
training    a group's job, submitted and waited for
proving     that models answer, with the weights that they should
gating      old models against new ones
swapping    who serves next
publishing  the report, the state and the cost of a run
records     what is on record of each iteration, read once where it is over
rerun       doing part of a run again

`nip_core.loop` says in which order they are called; a notebook can call them directly.
"""
