"""Files that anybody may have written are read within limits, and what is wrong is said by place."""

import os
import threading
import time
from pathlib import Path

import pytest

from nip_base.formats.bounds import ReadError, parse_json
from nip_base.formats.untrusted import MAX_YAML_BYTES, parse_yaml, read_text
from nip_lm_server.engines.scripted.reply_rules import load_replies


def bomb() -> str:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    return "\n".join(lines)


REFUSED = {
    "nested": ("a: " + "[" * 20_000, "nested more than 64 deep (line 1)"),
    "nested mappings": ("{a: " * 20_000, "nested more than 64 deep (line 1)"),
    "digits": ("a: 1\nseed: " + "7" * 5_000, "more than 4300 digits (line 2)"),
    "hexadecimal digits": ("seed: 0x" + "f" * 4_000, "more than 4300 digits (line 1)"),
    "a bomb of aliases": (bomb(), "more than 500000 values (line 6)"),
    "a bomb of merges": (bomb().replace("[*", "[{<<: *").replace(", *", "}, {<<: *"), "line"),
    "an alias of itself": ("a: &a [*a]", "an alias stands for what it is a part of (line 1)"),
    "base 60": ("seed: 12:30:45", "'12:30:45' is 45045 in YAML 1.1, to base 60"),
    "base 60 with a fraction": ("a: 1:30.5", "'1:30.5' is 90.5 in YAML 1.1, to base 60"),
    "base 8": ("seed: 017", "'017' is 15 in YAML 1.1, to base 8"),
    "no month": ("a: 2024-13-01", "'2024-13-01' can't be read as timestamp (line 1)"),
    "no truth": ("a: !!bool perhaps", "'perhaps' can't be read as bool"),
    "no number": ("a: !!float ''", "'' can't be read as float"),
    "a day": ("a: 2024-12-01", "'2024-12-01' is a date in YAML: write it in quotes"),
    "bytes": ("a: !!binary aGVsbG8=", "JSON has no form for a value of the kind binary (line 1)"),
    "a set": ("a: !!set {b, c}", "JSON has no form for a value of the kind set (line 1)"),
    "half a pair": ('a: "\\ud800"', "it has half a surrogate pair (line 1)"),
    "twice": ("a: 1\na: 2", "the key 'a' stands twice (line 2)"),
    "a control code": ("a: 1\nb: \x1b[0m", "the character '\\x1b' may not stand in it (line 2)"),
    "an open list": ("a: [1", "expected ',' or ']'"),
    "an unknown alias": ("a: *b", "found undefined alias"),
    "code": ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
}


NOT_YAML = ("a bomb of merges", "a control code", "an open list", "an unknown alias")


@pytest.mark.parametrize("what", REFUSED)
def test_yaml_that_is_too_much_or_is_not_what_it_seems_is_refused_with_its_line(what: str) -> None:
    text, expected = REFUSED[what]
    began = time.monotonic()
    with pytest.raises(ReadError) as refused:
        parse_yaml(text)
    assert expected in str(refused.value) and len(str(refused.value)) < 200
    verdict = "is not YAML: " if what in NOT_YAML else "is not taken: "
    assert str(refused.value).startswith(verdict)
    assert time.monotonic() - began < 10


def test_yaml_as_people_write_it_is_read() -> None:
    text = (
        "base: &base {lr: 0.001, on: true}\nmore: {<<: *base, n: 0x1f}\nlist: [*base, 0, -0, 1_000]"
    )
    base = {"lr": 0.001, "on": True}
    assert parse_yaml(text) == {
        "base": base,
        "more": {**base, "n": 31},
        "list": [base, 0, 0, 1000],
    }
    assert parse_yaml("") is None and parse_yaml("017", plain_numbers=False) == 15


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("[" * 100_000, "nested more than 64 deep"),
        ('{"a":' * 65 + "1" + "}" * 65, "nested more than 64 deep"),
        ("9" * 5_000, "more than 4300 digits"),
        (b"\xff", "not UTF-8"),
        ("{", "Expecting property name"),
    ],
)
def test_json_of_a_file_is_refused_by_one_kind_of_error(raw: bytes | str, expected: str) -> None:
    with pytest.raises(ReadError, match=expected):
        parse_json(raw)


def test_a_replies_file_that_is_nested_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "replies.yaml"
    path.write_text("default: " + "[" * 20_000)
    with pytest.raises(
        ValueError, match=r"replies\.yaml: is not taken: it is nested more than 64 deep"
    ):
        load_replies(path)


def test_what_has_no_end_is_read_no_further_than_a_file(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=f"larger than {MAX_YAML_BYTES} bytes, or has no end"):
        read_text(Path("/dev/zero"))
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    with pytest.raises(ReadError, match="symbolic links"):
        read_text(tmp_path / "loop.yaml")


def test_a_pipe_is_read_to_its_end_and_not_waited_for_without_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ReadError, match=r"a pipe into which nobody wrote for 0\.1 s"):
        read_text(pipe, pipe_s=0.1)

    def write() -> None:
        with pipe.open("w") as file:
            for line in ("a: 1\r\n", "b: 2\n"):
                file.write(line)
                file.flush()
                time.sleep(0.05)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert read_text(pipe, pipe_s=10) == "a: 1\nb: 2\n"
    writer.join()


def test_a_pipe_that_stays_open_is_not_waited_for_without_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDWR), "wb", buffering=0) as writer:
        writer.write(b"a: 1\n")
        with pytest.raises(ReadError, match=r"is still open, and nothing was written for 0\.1 s"):
            read_text(pipe, pipe_s=0.1)
