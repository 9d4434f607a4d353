"""A run's files looked after: verified, done again, copied.

verify           the files against each other; verify_records: of the run;
                 verify_iteration: of an iteration; file_checks: the findings
rerun            a part of a run done again
export           its tables copied
"""
