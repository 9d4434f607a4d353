"""The error of code that reads or brings a model."""


class ModelError(Exception):
    """A model on disk can't be used: it is damaged, of another kind, or not the requested one."""
