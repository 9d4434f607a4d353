"""Providers: their APIs' dialects, and the published models they serve."""
