"""The progress of a run: stages write it, views show it.

board     what stages write: counters, activities, events, and the stages still to come
outlook   what views read: all of it at one moment, with rates and the time left
words     the same in lines, for terminals and logs

Nothing here prints, and nothing here knows who looks: a terminal, a pipe, a program that reads
JSON, and Prefect's pages are views of the same `State` and the same events.
"""
