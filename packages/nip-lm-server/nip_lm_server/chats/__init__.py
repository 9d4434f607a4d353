"""Chat templates, and the calls of tools in them."""
