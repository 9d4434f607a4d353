"""A time-stamping authority (RFC 3161) of this machine: openssl, its own CA, and an HTTP server.

stamping_authority  answers queries as long as it is entered
"""

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_SETTINGS = """
[tsa]
default_tsa = authority
[authority]
serial = {folder}/serial
signer_cert = {folder}/{signer}.pem
{certs}
signer_key = {folder}/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = {digests}
ess_cert_id_alg = sha256
"""


class Authority:
    """Its address, the certificate of its CA, and how it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ca = folder, folder / "ca.pem"
        self.url = ""
        self.types: list[str | None] = []
        """The content types of the queries so far."""
        self.digests = "sha256"
        """Of files that it stamps; a query with another one is rejected."""
        self.signer = "tsa"
        """Its certificate: `tsa`, or `expired`, which was valid yesterday."""
        self.shows_root = True
        """Whether its tokens contain the certificate of its CA."""
        self.answers_with: bytes | None = None
        """In the place of a reply."""
        self.status = 200
        self.waits_s = 0.0
        _openssl(
            folder,
            "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem",
            "-subj /CN=authority-of-tests -days 2",
        )
        _openssl(
            folder,
            "req -newkey rsa:2048 -nodes -keyout tsa.key -out tsa.csr",
            "-subj /CN=stamps-of-tests",
        )
        (folder / "uses").write_text("extendedKeyUsage=critical,timeStamping\n")
        _openssl(
            folder,
            "x509 -req -in tsa.csr -CA ca.pem -CAkey ca.key -CAcreateserial",
            "-out tsa.pem -days 2 -extfile uses",
        )
        _openssl(
            folder,
            "x509 -req -in tsa.csr -CA ca.pem -CAkey ca.key -CAcreateserial",
            "-out expired.pem -days -1 -extfile uses",
        )
        (folder / "serial").write_text("01\n")

    def reply(self, query: bytes) -> bytes:
        """The reply to a query, as openssl makes it."""
        (self.folder / "query").write_bytes(query)
        settings = _SETTINGS.format(
            folder=self.folder,
            digests=self.digests,
            signer=self.signer,
            certs=f"certs = {self.ca}" if self.shows_root else "",
        )
        (self.folder / "settings").write_text(settings)
        _openssl(self.folder, "ts -reply -config settings -queryfile query -out reply")
        return (self.folder / "reply").read_bytes()


@contextmanager
def stamping_authority(folder: Path) -> Iterator[Authority]:
    """An authority that answers on a port of this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority(folder)

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = self.rfile.read(int(self.headers["content-length"]))
            authority.types.append(self.headers["content-type"])
            time.sleep(authority.waits_s)
            reply = authority.answers_with
            content = authority.reply(query) if reply is None else reply
            self.send_response(authority.status)
            self.send_header("content-type", "application/timestamp-reply")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    authority.url = f"http://127.0.0.1:{server.server_port}/tsr"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield authority
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _openssl(folder: Path, *parts: str) -> None:
    command = ["openssl", *" ".join(parts).split()]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
