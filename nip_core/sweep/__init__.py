"""Sweeps play many runs with a few settings changed, and make one table of them all.

plan       the runs of a sweep and its attacks, from its file
declare    a study's claims, declared before it is run
compute    figures from verdicts
documents  results as documents, and the facts that they need beside the verdicts
pages      results as pages and figures
parts      counts, document parts and page tables, which all of them share
compare    runs on record side by side, whatever sweep they are of
harden     rounds of attacks and training, and their results

facts_on_record  what is on record of the runs: facts and verdicts
results          a sweep's results, as a document, a page and a figure
recompute        the same again, from the files beside them alone
"""
