"""A directory becomes a repository's content, and the other way round.

check_public    what is there, and whether it may be written to
push_directory  what of a directory the Hub lacks, in one commit
receive         a repository's files at a commit, in a new directory, compared with ``nip.json``,
                and its other files

`push_directory` looks before it writes: equal files make no commit, a push that was killed goes on
with the Hub's files by then, and an answer that was lost is looked up instead of asked for again.
A repository that has something else is left as it is, and so are files that people have added to
this run's.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nip_bridges.hub.client import Hub, Remote, UnclearError
from nip_bridges.hub.nip_json import Facts
from nip_bridges.hub.repository import (
    FACTS,
    list_files,
    list_patterns,
    new_directory,
    read_facts,
    read_sealed,
    select_taken,
)
from nip_core.errors import NipError, SettingsError
from nip_core.parameters.services.published import Reference

_OF_THE_HUB = frozenset({".gitattributes"})


@dataclass(frozen=True)
class Published:
    """A repository at the commit with all published files."""

    reference: Reference
    url: str
    is_new: bool
    """False: it had all of it already."""


@dataclass(frozen=True)
class Existing:
    """A repository of this run, or an empty one: nip may write to it."""

    remote: Remote
    published: frozenset[str] = frozenset()
    """The files of an earlier push; any other ones are not nip's."""


def check_public(hub: Hub, reference: Reference, facts: Facts, *, public: bool) -> Existing | None:
    """Look at a repository before writing to it; return None if it is not there yet.

    Raises SettingsError if it has something else than this run's, or if others would see what they
    were not meant to.
    """
    remote = hub.look(reference)
    if remote is None:
        return None
    if remote.is_private == public:
        is_now, wished = ("private", "public") if public else ("public", "private")
        advice = "make it public on its page" if public else "give --public"
        raise SettingsError(
            f"{reference} is there and {is_now}, and what is pushed would be {wished}; {advice}, "
            "or choose another name"
        )
    names = set(remote.files) - _OF_THE_HUB
    if not names:
        return Existing(remote)
    if FACTS in names:
        pinned = reference.at(remote.commit)
        earlier = read_facts(hub.download(pinned, [FACTS]), f"{pinned}")
        if (
            earlier is not None
            and earlier.kind == facts.kind
            and earlier.lineage.source == facts.lineage.source
        ):
            return Existing(remote, frozenset(earlier.files))
        content = (
            "nothing of nip" if earlier is None else f"{earlier.kind} of {earlier.lineage.source}"
        )
    else:
        content = _name_some(sorted(names))
    raise SettingsError(
        f"{reference} is there and has something else ({content}); choose another name"
    )


def push_directory(
    hub: Hub,
    reference: Reference,
    directory: Path,
    facts: Facts,
    message: str,
    *,
    public: bool,
    say: Callable[[str], None] = lambda _: None,
) -> Published:
    """Make the repository have the files of `directory`, and no others of an earlier push.

    Files of other users stay. `say` hears what is removed.

    Raises SettingsError where the Hub refuses, ServerError where it can't be reached.
    """
    files = list_files(directory)
    for attempt in range(1, 1_000):
        # 1. The files that are there now.
        existing = check_public(hub, reference, facts, public=public)
        if existing is None:
            hub.create(reference, private=not public)
            say(f"made {hub.url(reference)}, {'public' if public else 'private'}")
            existing = check_public(hub, reference, facts, public=public)
            if existing is None:
                raise SettingsError(f"{reference}: it was made, and this token may not see it")
        remote = existing.remote
        # 2. The files that it lacks, and those of an earlier push that are gone.
        lacking = {
            name: path
            for name, path in files.items()
            if name not in remote.files or not remote.files[name].equals(path)
        }
        gone_ones = sorted(existing.published & remote.files.keys() - files.keys())
        if not lacking and not gone_ones:
            return Published(reference.at(remote.commit), hub.url(reference), attempt > 1)
        if gone_ones:
            say(
                f"removes what only an earlier push had ({len(gone_ones)}): {_name_some(gone_ones)}"
            )
        # 3. One commit. Where its outcome is unknown, look again.
        try:
            commit = hub.commit(reference, lacking, gone_ones, message, remote.commit)
        except UnclearError as error:
            say(f"{error}")
            hub.wait(error, attempt)
            continue
        return Published(reference.at(commit), hub.url(reference), True)
    raise AssertionError("Hub.wait raises after the last attempt")


@dataclass(frozen=True)
class Received:
    """The files taken from a repository."""

    reference: Reference
    """Pinned."""
    facts: Facts | None
    """None: nip has not published it."""
    left_out: tuple[str, ...] | None
    """Files that it has besides; None: the Hub could not be asked."""


def receive(hub: Hub, reference: Reference, target: Path) -> Received:
    """Put the files of a repository into the new directory `target`.

    Raises SettingsError if there are none, or `target` has others; CorruptionError if they are not
    the published ones.
    """
    pinned = hub.pin(reference)
    source = hub.download(pinned, list_patterns(reference.kind))
    facts = read_sealed(source, f"{pinned}")
    if facts is not None and facts.kind != reference.kind:
        raise SettingsError(f"{pinned} has the {facts.kind} of a run, not the {reference.kind}")
    files = select_taken(source, facts, reference.kind)
    if not files:
        raise SettingsError(
            f"{pinned} has no file of those that are taken (an adapter's or a base model's, or "
            "Parquet of a dataset); weights are taken as safetensors alone"
        )
    with new_directory(target) as part:
        for name, path in files.items():
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, part / name)
    return Received(pinned, facts, _left_out(hub, pinned, files))


def _left_out(hub: Hub, pinned: Reference, taken: Mapping[str, Path]) -> tuple[str, ...] | None:
    try:
        remote = hub.look(pinned)
    except NipError:  # all that was asked for is there, from the cache
        return None
    if remote is None:
        return None
    return tuple(sorted(remote.files.keys() - taken.keys() - _OF_THE_HUB))


def _name_some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
