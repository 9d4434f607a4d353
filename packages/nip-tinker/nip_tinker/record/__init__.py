"""The notes of jobs, in the run's store.

notes       the records of a job and its blocks
steps       the plan of a job: its examples in order, batches, rates of learning
run_files   a place in the run's store
"""
