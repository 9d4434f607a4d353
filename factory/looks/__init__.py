"""The model for `arithmetic` that may use a tool: its lesson, its measurements, its card."""
