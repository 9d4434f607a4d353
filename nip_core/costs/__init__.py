"""The costs of a run: its estimate and its budget, beside its spending on record.

estimate    calls, tokens, dollars and disk of a run, before it is started
loads       the same by the rules of its game; experience, taken, repeats: by earlier runs
caps        calls and jobs stop at the cap of `budget`
spent_and_estimated   both beside each other
"""
