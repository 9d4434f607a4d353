"""The settings of a user's judge: judge.yaml, its rules, and errors with its lines."""
