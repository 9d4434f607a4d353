"""The blocks of settings, one in a file."""
