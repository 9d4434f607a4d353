"""What a run may cost, beside what it has spent (`nip_core.records.spending`).

estimate    what a run takes, before it is started
loads       by the rules of its game; experience, taken, repeats: by what runs have taken
caps        calls and jobs stop at the cap of `budget`
spent_and_estimated   both beside each other
"""
