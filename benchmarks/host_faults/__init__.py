"""What `hosts.py` plays on the hosts of `tests/helpers/four_hosts`.

site            what runs on them: object store, PostgreSQL, Prefect, Dask, a stub as model server
trials          runs on them, and what happens to them
counted_server  the stub, which writes down what it answers
"""
