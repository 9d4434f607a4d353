"""Sweeps play many runs with a few settings changed, and make one table of them all.

swept_runs       the runs of a sweep, from its file
swept_facts      what results need beside the verdicts, as a document
planned          a sweep as whoever compares arms sees it
facts_on_record  what is on record of them: facts and verdicts
results          what came of them, as a document, a page and a figure
recompute        the same again, from the files beside them alone
arm_baselines    what those among the arms say of the others
swept_tests      the figures of a test, or of an attack, from verdicts
asked_again      what the verifier alone finds by any of k verdicts
verifier_tokens  what the verifier of an attack generated
effort_curves    what attacks left over what they took
cells            every verdict, as a table
page             that page, with page_tables and asked_again_page
results_document that document, with document_parts and asked_again_document
declaration      what a study will show, said before it is run
declared_digests what that holds fast, in digests
timestamp        a third party's word when that existed
departures       what of a sweep is not as it was declared
hypotheses       what is said of arms, and which runs that is about
outcomes         what came of that
played           runs on record, whatever sweep they are of
diff             what is different about two of them
comparison       several of them side by side
"""
