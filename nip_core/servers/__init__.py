"""Where models answer: their addresses, and the run's own server.

endpoints       the addresses of each group, and their keys
own_server      the run's own server, started and watched; engine_sizes: how large its engine is
kept_models     the models that a run keeps where the disk of its server may go
shutdown_dates  models that OpenAI is about to shut down
"""
