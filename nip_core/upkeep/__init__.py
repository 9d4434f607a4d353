"""A run's files looked after: verified, done again, tidied, copied.

verify           the files against each other; verify_records: of the run;
                 verify_iteration: of an iteration; verify_servers: models and jobs
rerun            a part of a run done again
clean            files that no run needs any more; export: its tables copied
"""
