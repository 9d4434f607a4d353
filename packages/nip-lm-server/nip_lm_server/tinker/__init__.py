"""Tinker's API without its routes: what a training loop asks for, kept and done once.

tinker_bodies     the JSON bodies, and what is refused in them
tinker_messages   the three that are protobuf, by `schema`
storage           sessions, models, numbered requests, checkpoints (`store`), adapters and
                  optimizer states on disk (`folders`), the end of what is over (`upkeep`)
executor          a model's requests in their order, by a trainer that stays; replay after a kill
steps             what each kind of request does, by `trainers`
samples           tokens from the engine
service           all of it together, as the routes see it; `door` opens it when it is asked for

A training request is (model, number), a sample (sampler, number). It is on disk before it is
answered with an id, executed in the order of its numbers, and its result is on disk before anybody
is told of it. So the same request sent again is the same request, and what a kill interrupts is
done again from the last state on disk: nothing counts twice.
"""
