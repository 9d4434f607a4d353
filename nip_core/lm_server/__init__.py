"""The server's old place: it is the package `nip_lm_server` now, in the folder `lm_server`."""
