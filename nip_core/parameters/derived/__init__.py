"""Answers that settings alone give: where models are served, prices, tested iterations."""
