"""What runs nip with Prefect: `flows` and `tasks`, under a name that nobody else's modules have.

Both folders lie at the top of the repository and are linked from here. Installed as the top-level
packages `flows` and `tasks`, they would hide a `tasks.py` of a user's, or be hidden by it.
"""
