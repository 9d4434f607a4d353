"""The commands `nip track`, `nip export`, `nip push` and `nip pull`."""
