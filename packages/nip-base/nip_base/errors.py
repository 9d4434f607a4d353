"""The error that all parts of nip share."""


class NipError(Exception):
    """The base of the errors that nip raises on purpose: one line says what to do."""
