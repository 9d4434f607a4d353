"""Sweeps play many runs with a few settings changed, and make one table of them all.

swept_runs the runs of a sweep, from its file
results        what came of them, as a document, a page and a figure
arm_baselines  what those among the arms say of the others
asked_again    what the verifier alone finds by any of k verdicts
cells          every verdict, as a table
page           that page
declaration    what a study will show, said before it is run
outcomes       what came of that
played         runs on record, whatever sweep they are of
diff           what is different about two of them
comparison     several of them side by side
"""
