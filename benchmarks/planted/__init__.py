"""An exploit that is planted for `benchmarks/planted_exploits.py`.

page      how it is played, and the page of it
prover    a model that says a word as rarely as it is asked to
verifier  one that never errs, but for that word
word      the script that says it
"""
