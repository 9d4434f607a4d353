"""Showing a run in trackers: trackio, Weights & Biases, MLflow, TensorBoard.

points     what is shown: rows of numbers, made of committed records
point_log  the run's own list of them, in batches that never change
trackers   what all trackers have in common, and which there are; to_*.py: each of them
messages   what a feeder is told, and tells
feeders    the processes of a run, started and ended with its session
places     where a tracker is, and its needs
feeder     the process that sends one tracker what it lacks: ``python -m nip_bridges.tracking``

A tracker is a projection of the run's store. A batch is written down in the run, with the times of
its points, before any tracker is sent it; so a repetition sends the same. Each tracker has a
run whose id derives from nip's, and takes a batch twice as once: by an id of each row, by a file
that appears whole, or because it is asked what it has. A session starts its
processes, see `nip_bridges.tracking.feeders`.
"""
