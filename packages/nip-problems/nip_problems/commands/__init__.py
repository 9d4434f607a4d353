"""The command `nip problems`."""
