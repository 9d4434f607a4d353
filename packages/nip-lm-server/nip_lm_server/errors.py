"""The error that everything raises here that reads or brings a model."""


class ModelError(Exception):
    """A model on disk can't be used: damaged, of another kind, or not the one that was asked."""
