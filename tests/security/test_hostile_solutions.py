"""What provers write is labelled as it is: nothing passes by anything but right answers."""

import asyncio
import socket
import sys
from collections import Counter
from pathlib import Path

import pytest

from nip_games.solutions import Solutions, SolutionsSettings

sys.path.append(str(Path(__file__).parent))
import hostile_solutions

QUICK = (
    "fork bomb at load",
    "a connection",
    "a file outside",
    "keys of the parent",
    "answers of its own",
    "other builtins",
    "tests in memory",
    "equal to everything",
    "a number equal to everything",
    "a class that lies of itself",
)


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Hostile solutions with what they are to reach, of which nothing may be reached."""
    monkeypatch.setenv("NIP_TEST_API_KEY", "a key")
    secret, outside = tmp_path / "secret", tmp_path / "outside"
    secret.write_text("a secret")
    outside.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        yield hostile_solutions.hostile(port, str(secret), str(outside))
        with pytest.raises(BlockingIOError):
            server.accept()
    assert [path.name for path in tmp_path.iterdir()] and list(outside.iterdir()) == []
    assert not Path("/tmp/nip-hostile-solution").exists()


def label(works, **settings):
    scenario = Solutions(SolutionsSettings(**settings))

    async def all_of_them():
        return await asyncio.gather(*(scenario.label_written(texts) for texts in works))

    return asyncio.run(all_of_them())


def adding(solution):
    names = {"entry_point": hostile_solutions.ENTRY_POINT, "tests": hostile_solutions.TESTS}
    return {"solution": solution, **names}


def check(works):
    """Label all, and say which got another label than theirs."""
    labels = label([texts for texts, _ in works.values()], seconds_per_solution=2, max_steps=10**6)
    wrong = {
        name: (made.y, made.mutation)
        for (name, (_, y)), made in zip(works.items(), labels, strict=True)
        if made.y != y
    }
    assert not wrong, wrong
    return Counter(made.mutation for made in labels)


def test_of_thirty_solutions_ten_are_hostile_and_none_gets_a_wrong_label(places):
    works = {name: (adding(places[name]), 0) for name in QUICK}
    works |= {str(n): work for n, work in enumerate(hostile_solutions.labelled(18))}
    works |= {"right": (adding(hostile_solutions.RIGHT), 1)}
    works |= {"wrong": (adding(hostile_solutions.WRONG), 0)}
    assert len(works) == 30
    check(works)


@pytest.mark.security
@pytest.mark.timeout(900)
def test_of_a_thousand_solutions_over_sixty_are_hostile_and_none_gets_a_wrong_label(places):
    assert len(places) >= 60
    others = hostile_solutions.labelled(1000 - len(places))
    names = [*places]
    works = {}
    # Hostile ones stand among the others, so that those would suffer.
    for number, work in enumerate(others):
        works[f"{number}"] = work
        if number % 12 == 0 and names:
            name = names.pop()
            works[name] = (adding(places[name]), 0)
    works |= {name: (adding(places[name]), 0) for name in names}
    assert len(works) == 1000
    kinds = check(works)
    assert kinds[None] > 400 and kinds["wrong answer"] > 400 and kinds["timeout"] > 0
