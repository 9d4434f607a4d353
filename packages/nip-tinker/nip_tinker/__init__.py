"""Training at a service that speaks Tinker's API, each step paid once.

backend     the calls of the ledger: `TinkerBackend`, which `model_provider: Tinker` names
driver      trains a job block by block, and goes on after any death
live_models the model that a job goes on with
stepping    the steps of a block
saving      the states of a job
ends        the end of a job
options     the size of blocks, and the service's habits
notes       the records of a job and its blocks
plan        the course of trainings, before a run begins
steps       the plan of a job: its examples in order, batches, rates of learning
datums      a step as the wire has it
preferences the gradient of DPO from log-probabilities
states      named states at the service: found again, renewed, deleted
proof       whether a sampler answers with the weights that were saved
agent_checks   settings that the wire can't carry
wire        requests, futures, errors
"""
