"""A run as it is on record, read and never written but for rewinds.

iterations       each iteration, read once where it is over; blocks: many of those together;
                 jobs_shown, run_shown: the parts of a job and of the run that are shown
models           which models it ended with; intervals, left_out, attack_on_record: figures
spending         the spending of each stage; spent_in_all: of the whole run
status           running, finished or stopped; liveness: whether a runner is seen
stage_seconds    how long stages have taken; transcript_files: where transcripts lie
rewinds          files set aside, for a part of the run to be done again
named_run        a run by its name
"""
