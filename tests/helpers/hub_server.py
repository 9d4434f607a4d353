"""A server that speaks the part of the Hugging Face Hub's API that nip's use of it comes to.

HubServer    users with tokens, repositories with commits, large files apart; faults on demand
Fault        what goes wrong with some requests, and how often
hub_here     one in a thread, with the environment in which `huggingface_hub` means it

It keeps what the Hub keeps: a repository has a line of commits, each a tree of files by their git
SHA-1; a file that ends like a large one is uploaded by its SHA-256 beforehand (git LFS, "basic"),
and is answered with a redirect. A commit names its parent and is refused (412) if another one is
the head by then. Private repositories are not there for strangers. Xet, the Hub's newer way of
uploading, is not spoken: HF_HUB_DISABLE_XET stands in the environment.
"""

import base64
import contextlib
import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_a-token-of-ada-that-nobody-prints"
READ_ONLY = "hf_a-token-that-only-reads"
ELSEWHERE = "hf_a-token-with-rights-to-another-repository"
_LARGE = (".safetensors", ".parquet")
_PLURAL = {"model": "models", "dataset": "datasets"}


@dataclass
class Fault:
    """Answer some requests with `status` (0: break the connection, after `after` bytes of body)."""

    method: str
    path: str  # a regular expression
    status: int
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    done_first: bool = False  # the request is carried out, and its answer is lost
    after: int = 0
    hold: bool = False  # the connection breaks only when `release` is set
    seen: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)


@dataclass
class Repository:
    private: bool
    commits: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """(name, message, by path the git SHA-1 of a file), oldest first."""

    def at(self, revision: str) -> tuple[str, dict[str, str]] | None:
        if revision == "main":
            return self.commits[-1][0], self.commits[-1][2]
        return next(((name, tree) for name, _, tree in self.commits if name == revision), None)


class HubServer(ThreadingHTTPServer):
    """All that the Hub knows."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.users = {
            TOKEN: ("ada", {"ada", "lab"}, "write"),
            READ_ONLY: ("ada", set(), "read"),
            ELSEWHERE: ("ada", set(), "fineGrained"),
        }
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.blobs: dict[str, bytes] = {}  # by git SHA-1; of large files their pointers
        self.large: dict[str, bytes] = {}  # by SHA-256
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.uploads: list[str] = []
        self.sent: list[tuple[str, str | None]] = []  # by path, what was sent as authorization
        self.lock = threading.RLock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def storage(self) -> str:
        """Another host, as large files lie at: no token may be sent there."""
        return f"http://localhost:{self.server_address[1]}"

    def repository(self, name: str, kind: str = "model") -> Repository:
        return self.repositories[kind, name]

    def make(
        self, name: str, kind: str = "model", private: bool = True, **files: bytes
    ) -> Repository:
        made = Repository(private)
        self.repositories[kind, name] = made
        self.add(made, "initial commit", {".gitattributes": b"*.safetensors filter=lfs\n", **files})
        return made

    def add(self, repository: Repository, message: str, files: dict[str, bytes | None]) -> str:
        """A commit with these files; None deletes one."""
        tree = dict(repository.commits[-1][2]) if repository.commits else {}
        for path, content in files.items():
            if content is None:
                tree.pop(path, None)
            else:
                tree[path] = self.put(path, content)
        named = json.dumps([len(repository.commits), message, tree], sort_keys=True)
        commit = hashlib.sha1(named.encode()).hexdigest()
        repository.commits.append((commit, message, tree))
        return commit

    def put(self, path: str, content: bytes) -> str:
        if path.endswith(_LARGE):
            sha256 = hashlib.sha256(content).hexdigest()
            self.large[sha256] = content
            content = pointer(sha256, len(content))
        sha1 = git_sha1(content)
        self.blobs[sha1] = content
        return sha1

    def content(self, name: str, path: str, kind: str = "model", revision: str = "main") -> bytes:
        found = self.repository(name, kind).at(revision)
        assert found is not None
        blob = self.blobs[found[1][path]]
        sha256 = pointed(blob)
        return blob if sha256 is None else self.large[sha256]


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def pointer(sha256: str, size: int) -> bytes:
    return (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
    )


def pointed(blob: bytes) -> str | None:
    match = re.match(rb"version https://git-lfs[^\n]*\noid sha256:([0-9a-f]{64})\n", blob)
    return None if match is None else match[1].decode()


class _Refused(Exception):
    def __init__(self, status: int, message: str, code: str | None = None):
        self.status, self.message, self.code = status, message, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        fault = self._fault(path)
        length = int(self.headers.get("Content-Length") or 0)
        if fault is not None and fault.status == 0 and not fault.done_first:
            self.rfile.read(min(fault.after, length))
            fault.seen.set()
            if fault.hold:
                fault.release.wait(60)
            self._break()
            return
        body = self.rfile.read(length) if length else self._chunks()
        with hub.lock:
            hub.requests.append((self.command, path))
            hub.sent.append((path, self.headers.get("Authorization")))
            try:
                if fault is not None and not fault.done_first:
                    raise _Refused(fault.status, "as the test wants it")
                status, headers, content = self._route(path, body)
            except _Refused as refused:
                status, content = refused.status, json.dumps({"error": refused.message}).encode()
                headers = {"X-Error-Message": refused.message}
                if refused.code:
                    headers["X-Error-Code"] = refused.code
                headers |= fault.headers if fault is not None else {}
        if fault is not None and fault.done_first:
            fault.seen.set()
            self._break()
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _break(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _chunks(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
            return b""
        parts = []
        while size := int(self.rfile.readline().strip() or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _fault(self, path: str) -> Fault | None:
        with self.server.lock:
            for fault in self.server.faults:
                if fault.times and fault.method == self.command and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None

    # Who asks, and for what ------------------------------------------------------------------

    def _user(self) -> tuple[str, set[str], str] | None:
        given = self.headers.get("Authorization")
        if given is None:
            return None
        user = self.server.users.get(given.removeprefix("Bearer "))
        if user is None:
            raise _Refused(401, "Invalid credentials in Authorization header")
        return user

    def _repository(self, kind: str, name: str, write: bool = False) -> Repository:
        user = self._user()
        repository = self.server.repositories.get((kind, name))
        hidden = repository is not None and repository.private and user is None
        if repository is None or hidden:
            if user is None:
                raise _Refused(401, "Invalid username or password.", "RepoNotFound")
            raise _Refused(404, "Repository not found", "RepoNotFound")
        if write and (user is None or name.partition("/")[0] not in user[1]):
            raise _Refused(403, "you must use a write token, or be a member of the organization")
        return repository

    def _at(self, repository: Repository, revision: str) -> tuple[str, dict[str, str]]:
        found = repository.at(revision)
        if found is None:
            raise _Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return found

    def _route(self, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        for pattern, method in _ROUTES:
            name, _, verbs = pattern.partition(" ")
            if self.command in verbs.split("|") and (match := re.fullmatch(name, path)):
                return getattr(self, method)(body, **match.groupdict())
        raise _Refused(404, f"the stand-in has no {self.command} {path}")

    # Routes ----------------------------------------------------------------------------------

    def whoami(self, _: bytes) -> Any:
        user = self._user()
        if user is None:
            raise _Refused(401, "Invalid username or password.")
        name, owners, role = user
        orgs = [{"type": "org", "name": owner} for owner in sorted(owners - {name})]
        token = {"displayName": "a token", "role": role, "createdAt": "2026-01-01T00:00:00.000Z"}
        auth = {"type": "access_token", "accessToken": token}
        return _json({"type": "user", "name": name, "fullname": "Ada", "orgs": orgs, "auth": auth})

    def create(self, body: bytes) -> Any:
        wish, user = json.loads(body), self._user()
        if user is None:
            raise _Refused(401, "Invalid username or password.")
        owner, kind = wish.get("organization") or user[0], wish.get("type", "model")
        name = f"{owner}/{wish['name']}"
        if owner not in user[1]:
            raise _Refused(403, f"You don't have the rights to create a {kind} under {owner!r}")
        if (kind, name) in self.server.repositories:
            raise _Refused(409, f"You already created this {kind} repo")
        self.server.make(name, kind, private=wish.get("visibility") == "private")
        prefix = "" if kind == "model" else f"{_PLURAL[kind]}/"
        return _json({"url": f"{self.server.url}/{prefix}{name}", "name": name})

    def validate(self, body: bytes) -> Any:
        content = json.loads(body)["content"]
        match = re.match(r"---\n(.*?)\n---\n", content, re.DOTALL)
        try:
            head = yaml.safe_load(match[1]) if match else {}
            assert isinstance(head, dict)
        except (yaml.YAMLError, AssertionError) as error:
            return (
                400,
                {},
                json.dumps({"errors": [{"message": str(error)}], "warnings": []}).encode(),
            )
        return _json({"errors": [], "warnings": []})

    def info(self, _: bytes, plural: str, name: str, revision: str | None = None) -> Any:
        repository = self._repository(_singular(plural), name)
        commit, tree = self._at(repository, revision or "main")
        return _json(
            {
                "id": name,
                "author": name.partition("/")[0],
                "sha": commit,
                "private": repository.private,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "siblings": [{"rfilename": path} for path in sorted(tree)],
            }
        )

    def tree(self, _: bytes, plural: str, name: str, revision: str) -> Any:
        _, tree = self._at(self._repository(_singular(plural), name), revision)
        entries = []
        for path, sha1 in sorted(tree.items()):
            blob = self.server.blobs[sha1]
            entry = {"type": "file", "oid": sha1, "size": len(blob), "path": path}
            if (sha256 := pointed(blob)) is not None:
                size = len(self.server.large[sha256])
                entry |= {"size": size}
                entry["lfs"] = {"oid": sha256, "size": size, "pointerSize": len(blob)}
            entries.append(entry)
        return _json(entries)

    def preupload(self, body: bytes, plural: str, name: str, revision: str) -> Any:
        repository = self._repository(_singular(plural), name, write=True)
        _, tree = self._at(repository, revision)
        files = []
        for asked in json.loads(body)["files"]:
            path = asked["path"]
            base64.b64decode(asked["sample"], validate=True)
            blob = self.server.blobs.get(tree.get(path, ""))
            files.append(
                {
                    "path": path,
                    "uploadMode": "lfs" if path.endswith(_LARGE) else "regular",
                    "shouldIgnore": False,
                    "oid": None if blob is None else pointed(blob) or git_sha1(blob),
                }
            )
        return _json({"files": files})

    def batch(self, body: bytes, name: str, plural: str = "models") -> Any:
        self._repository(_singular(plural), name, write=True)
        objects = []
        for asked in json.loads(body)["objects"]:
            upload = {"oid": asked["oid"], "size": asked["size"]}
            if asked["oid"] not in self.server.large:
                href = f"{self.server.url}/large/{asked['oid']}"
                verify = {"href": f"{self.server.url}/verify-large"}
                upload["actions"] = {"upload": {"href": href}, "verify": verify}
            objects.append(upload)
        return _json({"transfer": "basic", "objects": objects})

    def upload(self, body: bytes, sha256: str) -> Any:
        if hashlib.sha256(body).hexdigest() != sha256:
            raise _Refused(400, "the content is not what was announced")
        self.server.uploads.append(sha256)
        self.server.large[sha256] = body
        return 200, {}, b""

    def verify_large(self, body: bytes) -> Any:
        asked = json.loads(body)
        if len(self.server.large.get(asked["oid"], b"")) != asked["size"]:
            raise _Refused(404, "not uploaded")
        return _json({})

    def commit(self, body: bytes, plural: str, name: str, revision: str) -> Any:
        repository = self._repository(_singular(plural), name, write=True)
        head, tree = self._at(repository, revision)
        lines = [json.loads(line) for line in body.splitlines()]
        header, changes = lines[0]["value"], dict(tree)
        if header.get("parentCommit", head) != head:
            raise _Refused(412, "A commit has happened since. Please refresh and try again.")
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                content = base64.b64decode(value["content"])
                changes[value["path"]] = git_sha1(content)
                self.server.blobs[git_sha1(content)] = content
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.server.large:
                    raise _Refused(400, f"{value['path']} was not uploaded")
                blob = pointer(value["oid"], value["size"])
                changes[value["path"]] = git_sha1(blob)
                self.server.blobs[git_sha1(blob)] = blob
            elif line["key"] == "deletedFile":
                del changes[value["path"]]
            else:
                raise _Refused(400, f"unknown operation {line['key']}")
        named = json.dumps([len(repository.commits), header["summary"], changes], sort_keys=True)
        oid = hashlib.sha1(named.encode()).hexdigest()
        repository.commits.append((oid, header["summary"], changes))
        return _json({"commitUrl": f"{self.server.url}/{name}/commit/{oid}", "commitOid": oid})

    def resolve(self, _: bytes, name: str, revision: str, path: str, plural: str = "models") -> Any:
        commit, tree = self._at(self._repository(_singular(plural), name), revision)
        if path not in tree:
            raise _Refused(404, "Entry not found", "EntryNotFound")
        blob = self.server.blobs[tree[path]]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{tree[path]}"'}
        if (sha256 := pointed(blob)) is None:
            return 200, headers, blob
        headers |= {
            "X-Linked-Etag": f'"{sha256}"',
            "X-Linked-Size": str(len(self.server.large[sha256])),
            "Location": f"{self.server.storage}/cdn/{sha256}",
        }
        return 302, headers, b""

    def cdn(self, _: bytes, sha256: str) -> Any:
        content = self.server.large[sha256]
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if asked is None:
            return 200, {"ETag": f'"{sha256}"'}, content
        begin = int(asked[1])
        where = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        return 206, {"ETag": f'"{sha256}"', "Content-Range": where}, content[begin:]


def _json(value: Any) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _singular(plural: str) -> str:
    return plural.removesuffix("s")


_NAME = r"(?P<name>[\w.-]+/[\w.-]+)"
_API = rf"/api/(?P<plural>models|datasets)/{_NAME}"
_ROUTES = (
    ("/api/whoami-v2 GET", "whoami"),
    ("/api/repos/create POST", "create"),
    ("/api/validate-yaml POST", "validate"),
    (rf"{_API}/preupload/(?P<revision>[^/]+) POST", "preupload"),
    (rf"{_API}/commit/(?P<revision>[^/]+) POST", "commit"),
    (rf"{_API}/tree/(?P<revision>[^/]+) GET", "tree"),
    (rf"{_API}/revision/(?P<revision>[^/]+) GET", "info"),
    (rf"{_API} GET", "info"),
    (rf"/(?P<plural>datasets)/{_NAME}\.git/info/lfs/objects/batch POST", "batch"),
    (rf"/{_NAME}\.git/info/lfs/objects/batch POST", "batch"),
    (r"/large/(?P<sha256>[0-9a-f]{64}) PUT", "upload"),
    (r"/verify-large POST", "verify_large"),
    (r"/cdn/(?P<sha256>[0-9a-f]{64}) GET|HEAD", "cdn"),
    (
        rf"/(?P<plural>datasets)/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+) GET|HEAD",
        "resolve",
    ),
    (rf"/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+) GET|HEAD", "resolve"),
)


@contextlib.contextmanager
def hub_here() -> Iterator[HubServer]:
    """A server in a thread."""
    with HubServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def environment_of(server: HubServer, home: Path, token: str | None = TOKEN) -> dict[str, str]:
    """In which `huggingface_hub` means this server, and nothing of this machine's."""
    settings = {
        "HF_ENDPOINT": server.url,
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
    }
    return settings if token is None else {**settings, "HF_TOKEN": token}
