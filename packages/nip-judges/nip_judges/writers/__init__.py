"""Models that write texts against a judge: the best of n, and an attacker that is trained."""
