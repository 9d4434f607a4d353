"""`python -m nip_games.reasoning_gym --out graded.jsonl`: graded rows for an attack on a judge."""

import argparse
import sys
from pathlib import Path

from nip_core.errors import NipError
from nip_games.reasoning_gym.rows import write_rows
from nip_games.reasoning_gym.tasks import TASKS


def main() -> int:
    """Read the command line and write the rows; 2 where they are refused."""
    parser = argparse.ArgumentParser(
        prog="python -m nip_games.reasoning_gym",
        description="Write questions with responses, half of them right, as JSON Lines.",
    )
    parser.add_argument("--out", type=Path, required=True, help="The file.")
    parser.add_argument("--n", type=int, default=240, help="Rows, a multiple of 4.")
    parser.add_argument("--seed", type=int, default=0, help="Another seed gives other questions.")
    parser.add_argument(
        "--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="Default: all."
    )
    options = parser.parse_args()
    try:
        write_rows(options.out, options.n, options.seed, options.tasks)
    except (NipError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
