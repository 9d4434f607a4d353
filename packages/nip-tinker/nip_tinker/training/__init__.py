"""A job at the service, trained step by step.

driver      trains a job block by block, and goes on after any death
live_models the model that a job goes on with
stepping    the steps of a block
preferences the gradient of DPO from log-probabilities
saving      the states of a job
ends        the end of a job
"""
