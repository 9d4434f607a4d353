"""A run's exchange with the Hugging Face Hub, both ways. Nothing here knows the loop.

adapter_of_run          a trained model of a run as an adapter that others take
dataset_of_run          the tables of a run as others take them
adapters_to_start_from  adapters of the Hub on their way to a run's own server
client                  a connection: who asks, a repository's files, one commit, one download
nip_json                the document ``nip.json``
repository              what a repository of nip holds: its files with their digests
transfer                a directory to a repository, and back
cards                   the page of an adapter or a dataset, from facts
privacy                 what must not leave this machine: places, host names, keys
"""
