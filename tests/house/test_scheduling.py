"""Files of tests that need the same are played by few processes, and none waits for another."""

from houses import ROOT
from scheduling import TOGETHER, WITH_PREFECT, WITH_TORCH, choose_scope, needs_of

SCOPES = ["tests/house/", "tests/flows/test_seen.py", "tests/flows/test_tiny.py"]


def test_a_process_takes_what_it_has_the_means_for_before_anything_else():
    assert choose_scope(SCOPES, 0, 3) == choose_scope(SCOPES, 1, 3) == "tests/flows/test_seen.py"
    assert choose_scope(SCOPES, 2, 3) == "tests/flows/test_tiny.py"
    assert choose_scope(SCOPES[:1], 0, 3) == choose_scope(SCOPES[:1], 2, 3) == "tests/house/"


def test_the_last_process_takes_what_the_others_have_left():
    assert choose_scope(SCOPES[1:2], 2, 3) == "tests/flows/test_seen.py"
    left = list(SCOPES)
    for _ in SCOPES:
        left.remove(choose_scope(left, 0, 1))
    assert not left


def test_the_places_that_are_named_are_there():
    assert all((ROOT / place).exists() for place in (*WITH_PREFECT, *WITH_TORCH, *TOGETHER))
    assert needs_of("tests/flows/test_tiny.py") == "torch" and needs_of("tests/house/") == ""
