"""A judge in the verifier's seat of nip's game, for its attacks and its views."""
