"""Runs to and from other programs: the Hugging Face Hub, trackers; `nip_inspect` beside it."""
