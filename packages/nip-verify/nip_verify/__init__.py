"""The files of a run looked after by hand: verified against their servers, too, and tidied.

verify      the command `nip verify`; whole: its findings
servers     models and jobs of a run, compared with the servers that trained them
clean       the command `nip clean`; unused: the files and models that nothing in a run refers to

The loop itself compares the files of a run with each other (`nip_core.upkeep.verify`).
"""
