"""A new database for Prefect's server, as Prefect's migrations make it. As a program: its SQL.

Prefect makes a new database by all the migrations that it ever had, which is the longest part of a
first run's start. The SQL beside this file has what they come to: the schema of Prefect 3.8.8
(Apache-2.0), without a row but the name of its last migration. A later Prefect goes on from there
by its own migrations, as it does with any database of 3.8.8.
"""

import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

VERSION = (3, 8, 8)
"""Of the Prefect whose schema this is."""
SQL = Path(__file__).with_name("ready_database.sql")


def lay_out() -> bool:
    """Make the database of this process's settings from the SQL, if it is a new one on SQLite.

    An obstacle to that is left to Prefect, which makes the database itself.
    """
    import prefect
    from prefect.settings import get_current_settings

    settings = get_current_settings()
    place = settings.home / "prefect.db"
    database = settings.server.database
    url = database.connection_url
    is_usual = url is not None and url.get_secret_value() == f"sqlite+aiosqlite:///{place}"
    if not is_usual or not database.migrate_on_start or _read_version(prefect) < VERSION:
        return False
    try:
        return _lay_out_at(place)
    except (OSError, sqlite3.Error):
        return False


def _lay_out_at(place: Path) -> bool:
    """Make a database there, whole or not at all; False where there is anything of one."""
    if any(os.path.lexists(f"{place}{end}") for end in ("", "-wal", "-shm", "-journal")):
        return False
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".prefect-db-") as folder:
        new_file = Path(folder) / place.name
        # As Prefect has it; the write-ahead log is in the file when it is closed.
        with closing(sqlite3.connect(new_file)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(SQL.read_text(encoding="utf-8"))
        os.link(new_file, place)  # refused where another command has made one meanwhile
    return True


def _read_version(package: object) -> tuple[int, ...]:
    version = str(getattr(package, "__version__", ""))
    return tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())


def dump(database: Path) -> str:
    """Return the SQL of a database's schema and of the name of its last migration."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return "\n".join(_list_statements(connection)) + "\n"


def _list_statements(connection: sqlite3.Connection) -> Iterator[str]:
    yield "BEGIN TRANSACTION;"
    for (statement,) in connection.execute(
        "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type = 'table' DESC, name"
    ):
        yield f"{statement};"
    for (insertion,) in connection.execute(
        "SELECT 'INSERT INTO alembic_version VALUES (' || quote(version_num) || ');' "
        "FROM alembic_version"
    ):
        yield insertion
    yield "COMMIT;"


def main() -> None:
    """Print the file: this Prefect's migrations, run on an empty database."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PREFECT_HOME"] = folder
        import asyncio

        import prefect
        from prefect.server.database import provide_database_interface

        asyncio.run(provide_database_interface().create_db())
        sys.stdout.write(
            f"-- The schema of Prefect {prefect.__version__} (Apache-2.0) on SQLite, printed by\n"
            f"-- python -m nip_cli.launching.ready_database\n{dump(Path(folder) / 'prefect.db')}"
        )


if __name__ == "__main__":
    main()
