"""Counts, parts of documents and tables of pages, which all results share."""
