"""The base class of settings, and values that several blocks have."""
