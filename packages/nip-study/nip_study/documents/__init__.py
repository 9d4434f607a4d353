"""Results as documents: their types, and the facts beside the verdicts."""
