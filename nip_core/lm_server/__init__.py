"""The server's old place: it is the package `nip_lm_server` now, at the top of the repository."""
