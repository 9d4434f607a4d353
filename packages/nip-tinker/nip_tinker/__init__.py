"""Training at a service that speaks Tinker's API, each step paid once.

backend     the calls of the ledger: `TinkerBackend`, which `model_provider: Tinker` names
training/   trains a job block by block, and goes on after any death
record/     the notes of jobs, and their plans
plan        the course of trainings, before a run begins
options     the size of blocks, and the service's habits
datums      a step as the wire has it
states      named states at the service: found again, renewed, deleted
proof       whether a sampler answers with the weights that were saved
agent_checks   settings that the wire can't carry
gateway     play by token ids, for providers of OpenAI's protocol
wire        requests, futures, errors
"""
