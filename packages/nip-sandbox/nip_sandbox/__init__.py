"""The sandbox: untrusted code runs in processes of its own.

sandbox            for callers: `run_tests_batch`, `run_python_batch`, limits, results
sandbox_process    one child interpreter, from start to end
sandbox_child      the program inside of it
sandbox_wire       the messages between these two
sandbox_isolation  the layers that keep it in; sandbox_filters: the filters of system calls
"""
