"""A third party says when a declaration existed; docs/study.md says how to verify that."""

import contextlib
import hashlib
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from rfc3161_client import HashAlgorithm, TimestampRequestBuilder
from stamping import stamping_authority

from nip_core.errors import CorruptionError, ServerError, SettingsError
from nip_core.run_store.run import Identity, RunStore
from nip_core.run_store.store import open_store
from nip_study.commands.declare import declare as declare_command
from nip_study.declare import timestamp
from nip_study.declare.declaration import declare, read_plan
from nip_study.declare.timestamp import check_token, read_stamp, stamp
from nip_study.facts_on_record import collect_sweep
from nip_study.recompute import recompute_results
from nip_study.results import write_results

SWEEP = {
    "name": "seen",
    "config": "deterministic",
    "axes": {"interaction_protocol": ["adp", "nip"], "seed": [1, 2]},
}
HIGHER = {
    "says": "asking keeps soundness",
    "figure": "soundness",
    "arm": {"interaction_protocol": "nip"},
    "against": {"interaction_protocol": "adp"},
    "expected": "higher",
    "primary": True,
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """The keys of an authority, which take a second to make."""
    folder = tmp_path_factory.mktemp("keys") / "authority"
    with stamping_authority(folder) as authority:
        yield authority


@pytest.fixture
def authority(keys):
    keys.digests, keys.answers_with, keys.status, keys.waits_s = "sha256", None, 200, 0.0
    keys.signer, keys.shows_root = "tsa", True
    keys.types.clear()
    return keys


def planned(tmp_path, **changes):
    sweep = {**SWEEP, "run_store": str(tmp_path / "runs")}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    plan = {"sweep": "sweep.yaml", "stopping": "all runs", "hypotheses": [{**HIGHER, **changes}]}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    return tmp_path / "plan.yaml"


def place(tmp_path):
    return tmp_path / "runs" / "sweeps" / "seen"


def verified(folder, ca):
    """What openssl says to a stranger who trusts the authority, and does as the page says."""
    page = (Path(__file__).parents[3] / "docs" / "study.md").read_text()
    [commands] = re.findall(r"```sh\n(openssl ts .*?)```", page, re.DOTALL)
    shutil.copy(ca, folder / "CA.pem")
    return subprocess.run(
        ["bash", "-ec", commands], cwd=folder, capture_output=True, text=True, check=False
    )


def declared(tmp_path):
    """A declaration in a store."""
    plan = read_plan(planned(tmp_path))
    store = open_store(plan.sweep.run_store)
    declare(store, plan)
    return store, plan


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def query_over(content):
    return TimestampRequestBuilder(content, HashAlgorithm.SHA256).build().as_bytes()


def begin(store, plan):
    run = plan.sweep.runs[0]
    RunStore(store, run.name).create_or_open(Identity(run.parameters.to_dict(), "0", 1))
    return run.name


def test_a_stranger_verifies_that_a_declaration_existed(tmp_path, authority, capsys):
    declare_command(planned(tmp_path), timestamp=authority.url)
    said = capsys.readouterr().out
    assert (
        "time-stamped: " in said
        and "says that it existed at 20" in said
        and "openssl ts -verify -data declaration.json" in said
    )
    assert "had begun" not in said
    assert authority.types == ["application/timestamp-query"]
    shown = verified(place(tmp_path), authority.ca)
    assert "Verification: OK" in shown.stdout and "Time stamp: " in shown.stdout
    # An older stamp says more than a younger one, so it stays and nobody is asked.
    token = (place(tmp_path) / "declaration.tsr").read_bytes()
    declare_command(planned(tmp_path), timestamp=authority.url)
    assert "was time-stamped: " in capsys.readouterr().out
    assert (place(tmp_path) / "declaration.tsr").read_bytes() == token and len(authority.types) == 1
    # One letter of the declaration, and the stamp is not about it.
    path = place(tmp_path) / "declaration.json"
    path.write_bytes(path.read_bytes().replace(b"keeps", b"loses"))
    assert verified(place(tmp_path), authority.ca).returncode != 0
    with pytest.raises(CorruptionError, match="is about another file than the declaration"):
        read_stamp(open_store(str(tmp_path / "runs")), "seen")


def test_a_new_declaration_has_no_stamp_of_the_one_before(tmp_path, authority, capsys):
    declare_command(planned(tmp_path), timestamp=authority.url)
    declare_command(planned(tmp_path, expected="lower"))
    assert not (place(tmp_path) / "declaration.tsr").exists()
    # It may be asked for later, with the same plan.
    capsys.readouterr()
    declare_command(planned(tmp_path, expected="lower"), timestamp=authority.url, as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["plan"]["hypotheses"][0]["expected"] == "lower"
    assert "time-stamped: " in printed.err
    assert "Verification: OK" in verified(place(tmp_path), authority.ca).stdout


def test_the_page_says_what_a_stamp_shows_and_results_carry_it(tmp_path, authority):
    store, plan = declared(tmp_path)
    token, is_new = stamp(store, "seen", authority.url)
    assert is_new
    out, page = open_store(str(tmp_path / "out")), tmp_path / "out" / "README.md"
    write_results(store, plan.sweep, collect_sweep(store, plan.sweep), out)
    line = f"`declaration.tsr` says that the declaration existed at {token.time}; none"
    assert line in page.read_text()
    assert "Verification: OK" in verified(tmp_path / "out", authority.ca).stdout
    recompute_results(tmp_path / "out")
    # What lies beside the results is about this declaration, of this time.
    whole = (tmp_path / "out" / "declaration.tsr").read_bytes()
    (tmp_path / "out" / "declaration.tsr").write_bytes(whole[:100])
    with pytest.raises(CorruptionError, match=r"declaration\.tsr: no reply of a time-stamping"):
        recompute_results(tmp_path / "out")
    (tmp_path / "out" / "declaration.tsr").write_bytes(whole)
    facts = tmp_path / "out" / "facts.json"
    facts.write_text(facts.read_text().replace(token.time, "2001-01-01T00:00:00+00:00"))
    with pytest.raises(CorruptionError, match=r"facts\.json says 2001-01-01T00:00:00\+00:00"):
        recompute_results(tmp_path / "out")


def test_a_stamp_that_is_younger_than_a_run_is_told_as_what_it_is(tmp_path, authority, capsys):
    store, plan = declared(tmp_path)
    name = begin(store, plan)
    declare_command(planned(tmp_path), timestamp=authority.url)
    line = f"1 run had begun before that (as {name}): the stamp does not show that"
    assert line in capsys.readouterr().out
    facts = collect_sweep(store, plan.sweep).facts
    assert facts.stamp.begun_before == 1
    [doubt] = [line for line in facts.departures if line.startswith("time stamp: ")]
    assert doubt.startswith(f"time stamp: of {facts.stamp.time}, when 1 run had begun (the first")
    write_results(store, plan.sweep, collect_sweep(store, plan.sweep))
    page = (place(tmp_path) / "README.md").read_text()
    assert "1 run had begun by then, so it does not show that the declaration is older" in page


def test_a_stamp_that_is_not_about_the_declaration_keeps_nobody_from_results(tmp_path, authority):
    store, plan = declared(tmp_path)
    begin(store, plan)
    store.put("sweeps/seen/declaration.tsr", b"no token")
    facts = collect_sweep(store, plan.sweep).facts
    assert facts.stamp is None and "stamp" not in facts.as_json()
    where = "time stamp: sweeps/seen/declaration.tsr: no reply of a time-stamping authority"
    assert [line for line in facts.departures if line.startswith(where)]
    # Of no use to anybody, so another one takes its place.
    _, is_new = stamp(store, "seen", authority.url)
    assert is_new


def test_answers_that_are_no_token_over_the_declaration_are_refused(tmp_path, authority):
    store, _ = declared(tmp_path)

    def told(message):
        with pytest.raises(ServerError, match=message) as raised:
            stamp(store, "seen", authority.url)
        assert str(raised.value).startswith(f"--timestamp {authority.url}: ")
        assert not store.exists("sweeps/seen/declaration.tsr")

    authority.digests = "sha512"
    told("no token was granted: rejection Message digest algorithm is not supported")
    authority.digests = "sha256"
    authority.answers_with = reply = authority.reply(query_over(b"another file"))
    told(rf"about another file than the declaration \(SHA-256 {sha256(b'another file')[:16]}")
    # Forged: the digest of this file in the place of the other one's, which was signed.
    content = (place(tmp_path) / "declaration.json").read_bytes()
    digests = [bytes.fromhex(sha256(file)) for file in (b"another file", content)]
    authority.answers_with = forged = reply.replace(*digests)
    assert forged != reply
    told(r"the token is not genuine \(.*digest failure")
    with pytest.raises(CorruptionError, match=r"of_it: the token is not genuine"):
        check_token(forged, content, "of_it")
    # A token over this very file, that answers another query.
    authority.answers_with = reply = authority.reply(query_over(content))
    told(r"the token is not genuine \(Nonce mismatch\)")
    assert check_token(reply, content, "of_it").time
    # Of a signer whose certificate had ended.
    authority.answers_with, authority.signer = None, "expired"
    told(r"the token is not genuine \(.*certificate has expired")
    authority.answers_with = b"<html>Welcome</html>"
    told(r"no reply of a time-stamping authority \(RFC 3161\)")
    authority.answers_with = b"x" * ((1 << 20) + 1)
    told("its answer is too long")
    authority.answers_with, authority.status = b"", 404
    told("answered with status 404")


def test_a_root_that_is_not_in_the_token_is_looked_for_on_this_machine(
    tmp_path, authority, monkeypatch
):
    store, _ = declared(tmp_path)
    authority.shows_root = False
    with pytest.raises(SettingsError, match=r"root CN=authority-of-tests .* SSL_CERT_FILE=FILE"):
        stamp(store, "seen", authority.url)
    assert not store.exists("sweeps/seen/declaration.tsr")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    token, is_new = stamp(store, "seen", authority.url)
    assert is_new and read_stamp(store, "seen") == token


def test_an_authority_that_does_not_answer_is_named(tmp_path, authority, monkeypatch):
    store, _ = declared(tmp_path)
    monkeypatch.setattr(timestamp, "_TIMEOUT_S", 0.3)
    authority.waits_s = 1.0
    with pytest.raises(ServerError, match=r"no answer within 0\.3 s; ask again later"):
        stamp(store, "seen", authority.url)
    monkeypatch.undo()
    with pytest.raises(ServerError, match=r"http://127\.0\.0\.1:9/: can't be reached .*ask later"):
        stamp(store, "seen", "http://127.0.0.1:9/")
    assert not store.exists("sweeps/seen/declaration.tsr")


def test_an_authority_that_drips_its_headers_has_one_deadline_for_all(tmp_path, monkeypatch):
    store, _ = declared(tmp_path)
    monkeypatch.setattr(timestamp, "_TIMEOUT_S", 0.3)
    ended = threading.Event()

    def drip(listening):
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nx-slow: ")
            while not ended.wait(0.05):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        dripping = threading.Thread(target=drip, args=[listening])
        dripping.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        threading.Timer(5, ended.set).start()
        with pytest.raises(ServerError, match=r"no answer within 0\.3 s; ask again later"):
            stamp(store, "seen", url)
        assert not ended.is_set()
        ended.set()
        dripping.join()


@pytest.mark.parametrize("url", ["ftp://stamps.example", "stamps.example/tsr", "http://", ""])
def test_what_can_t_be_asked_is_refused_before_anything_is_declared(tmp_path, url):
    with pytest.raises(SettingsError, match=r"--timestamp .*begins with http:// or https://"):
        declare_command(planned(tmp_path), timestamp=url)
    assert not place(tmp_path).exists()


def test_without_the_library_a_stamp_is_refused_and_a_declaration_is_not(
    tmp_path, authority, monkeypatch, capsys
):
    store, plan = declared(tmp_path)
    stamp(store, "seen", authority.url)
    write_results(store, plan.sweep, collect_sweep(store, plan.sweep), open_store(tmp_path / "out"))
    monkeypatch.setitem(sys.modules, "rfc3161_client", None)  # as if it was not installed
    with pytest.raises(SettingsError, match="needs the package rfc3161-client.* timestamps$"):
        declare_command(planned(tmp_path), timestamp=authority.url)
    declare_command(planned(tmp_path))
    assert "declaration.tsr is there, and was not looked at: " in capsys.readouterr().out
    facts = collect_sweep(store, plan.sweep).facts
    assert facts.stamp is None
    assert [line for line in facts.departures if "a time stamp needs the package" in line]
    recompute_results(tmp_path / "out")
