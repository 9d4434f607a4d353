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
agenda      the work of the run, said at its start
served      which models play an iteration
stage_times the seconds of its stages, put on record while they go on

They work on an open run, `nip_core.session`. Its records are `nip_core.records`; people and
programs see it through `nip_core.showing`.
"""
