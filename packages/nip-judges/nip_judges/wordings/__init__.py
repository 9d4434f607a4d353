"""Texts that fool judges: wordings around wrong answers, and edits of right ones."""
