"""The stages of an iteration as plain functions, each idempotent by the keys of the run store.

Called by `nip_core.loop`, which says in which order; a notebook can call them directly:

playing     a split: its plan, its shards, its commit (remote_shards: in other processes)
measuring   metrics and transcripts of a split (intervals: those that are shown; attacked: what an
            attack is compared with)
choosing    from rollouts to the dataset of a job
training    a group's job, submitted and waited for
proving     that models answer, with the weights that they should
gating      old models against new ones
swapping    who serves next
publishing  the report, the state and the cost of a run
agenda      what the run has to do, said at its start (stage_times: what its stages have taken)

Before the first, and around all:

prepare     everything that is checked before anything is held or started; by itself or with
            estimate (loads by the rules, and by experience: what runs have taken, repeats),
            room (on the disks), shutdown_dates, origin (models of other runs), from_hub, attack
session     what all stages of a run share in one process: settings, game, store, lease, client,
            own_server, kept_models, feeders with trackers, budget with spending
checks      what only a server can say (engine_sizes, too_long)
models, providers    who is asked where

A run as it is on record, for whoever looks at it:

records     each iteration, read once where it is over (shapes, costs, liveness, difficulty)
showing     the summary and the report (transcripts); how_far: a run that was stopped
listing, named_run, reading, prompting    all runs, one by its name, its tables, its prompts
verification, verified_records, verified_server    whether all of it agrees
rerun, clean, export    doing part of it again, tidying up, copying
published, published_data    what goes to the Hub, or out as a plain adapter

Beside runs: build_problems, known_reports, written_bugs and asked_model make datasets; elsewhere
is a game whose models another program asks.
"""
