"""Published models, from a package index to a directory of this machine."""
