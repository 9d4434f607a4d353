"""A study's declaration: hypotheses, digests of files, a third party's time-stamp."""
