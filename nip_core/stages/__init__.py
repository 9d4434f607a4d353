"""The stages of an iteration as plain functions, each idempotent by the keys of the run store.

Called by `nip_core.loop`, which says in which order; a notebook can call them directly:

playing     a split: its plan, its shards, its commit (remote_shards: in other processes)
measuring   metrics and transcripts of a split, and the intervals that are shown
choosing    from rollouts to the dataset of a job
training    a group's job, submitted and waited for
proving     that models answer, with the weights that they should
gating      old models against new ones
swapping    who serves next
publishing  the report, the state and the cost of a run
agenda      what the run has to do, said at its start
served      which models play an iteration
stage_times what its stages have taken, put on record while they go on

What they work on is an open run, `nip_core.session`. What is on record of it is `nip_core.records`,
what people and programs see of it `nip_core.showing`.
"""
