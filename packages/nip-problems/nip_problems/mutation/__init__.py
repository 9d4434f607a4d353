"""Changed programs: mutation, rewriting, and the syntax trees for both."""
