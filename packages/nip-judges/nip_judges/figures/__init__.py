"""Figures of a judge from its cells, with their intervals, and the word that they allow."""
