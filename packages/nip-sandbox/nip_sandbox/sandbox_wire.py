"""The messages between the caller of a sandbox and its child process.

Header          to the child: its rules
Job             and then, of each job, the code to run
About           from the child: the layers in force here
Ending          and then, of each job, how it ended
Limit, Layers, WorkerMessage, Status, Stop, Outcome   their parts

A message is written as JSON, its fields in their order: both ends read this very file, so no name
of a field is spelt twice. Imported by `sandbox_child`, which runs without site-packages: nothing is
imported here but the modules that it has already.
"""

import json
from typing import Literal, NamedTuple

Status = Literal["ok", "error", "timeout", "memory", "output_limit", "killed"]
"""How a job ended."""
Stop = Literal["", "timeout", "memory", "output_limit", "killed"]
"""Why a job had to be stopped; "" where it ended by itself."""
Outcome = Literal["passed", "failed", "error", "timeout", "not_run"]
"""What came of one test."""
Kind = Literal["passed", "failed", "error", "timeout", "load", "end", "memory"]

# NamedTuples, as dataclasses would make the child's start longer: they import `inspect`.


class Limit(NamedTuple):
    """The most that one job may use; `sandbox.Limits` explains each."""

    wall_s: float
    cpu_s: float
    test_cpu_s: float
    memory_mb: int
    processes: int
    file_mb: int
    disk_mb: int
    open_files: int
    output_bytes: int


class Header(NamedTuple):
    """A child's rules, sent before its first job."""

    cwd: str
    limit: Limit
    allow_without_namespaces: bool
    refuse: list[str]
    """Layers to do without."""
    parent: int
    """The process that started it."""


class Job(NamedTuple):
    """A main program, or a solution with tests."""

    source: str
    stdin: str = ""
    tests: list[str] | None = None
    """None: `source` is a main program."""
    max_steps: int = 0


class Layers(NamedTuple):
    """The layers in force beyond plain limits; `sandbox.Isolation` explains each."""

    network: bool
    processes: bool
    filesystem: bool
    user: bool
    landlock: bool
    system_calls: bool


class About(NamedTuple):
    """A child's account of itself before its first job."""

    layers: Layers
    lacking: list[str]
    """What keeps untrusted code in and is not there, in words."""
    separate: bool
    """Whether code can't reach what belongs to other processes."""
    reason: str
    """Why there are no namespaces, or ""."""


class WorkerMessage(NamedTuple):
    """One thing that a worker said while it ran tests."""

    kind: Kind | None
    """None: what it said is none of these."""
    detail: str = ""


class Ending(NamedTuple):
    """How one job ended."""

    status: Status
    exit_code: int
    """Negative: the signal that ended it."""
    wall_s: float
    layers: Layers
    messages: list[WorkerMessage]
    """Of a job with tests."""
    stdout: str = ""
    stderr: str = ""


def encode_message(message: Header | Job | About | Ending) -> bytes:
    """Write a message as one line of JSON, without the line's end."""
    return json.dumps(message).encode()


def decode_header(data: bytes) -> Header:
    """Read the first message to a child."""
    header = Header(*json.loads(data))
    return header._replace(limit=Limit(*header.limit))


def decode_job(data: bytes) -> Job:
    """Read a further message to a child."""
    return Job(*json.loads(data))


def decode_about(data: bytes) -> About:
    """Read the first message of a child."""
    about = About(*json.loads(data))
    return about._replace(layers=Layers(*about.layers))


def decode_ending(data: bytes) -> Ending:
    """Read a further message of a child."""
    ending = Ending(*json.loads(data))
    messages = [WorkerMessage(*message) for message in ending.messages]
    return ending._replace(layers=Layers(*ending.layers), messages=messages)
