"""The sandbox: code that nobody vouches for runs in processes of its own.

sandbox            what callers use: `run_tests_batch`, `run_python_batch`, limits, results
sandbox_process    one child interpreter, from start to end
sandbox_child      the program inside of it
sandbox_wire       what these two tell each other
sandbox_isolation  what keeps it in on this system; sandbox_filters: the filters of system calls
"""
