"""Tinker's API without its routes: the requests of a training loop, kept and done once.

tinker_bodies     the JSON bodies, and the reasons to refuse them
tinker_messages   the three that are protobuf, by `schema`
storage           sessions, models, numbered requests, checkpoints (`store`), adapters and
                  optimizer states on disk (`folders`), the removal of old ones (`upkeep`)
executor          a model's requests in their order, by a trainer that stays; replay after a kill
steps             the work of each kind of request, by `trainers`
samples           tokens from the engine
service           all of it together, as the routes see it; `door` opens it for the first request

A training request is (model, number), a sample (sampler, number). It is on disk before its client
gets an id. Requests are executed in the order of their numbers, and a result is on disk before its
client gets it. So the same request sent again is the same request, and an interrupted one is done
again from the last state on disk: nothing counts twice.
"""
