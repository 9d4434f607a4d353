"""A third party's word that a declaration existed at a time: a token of RFC 3161 beside it.

The library ``rfc3161-client`` makes the query, reads the reply and verifies it: the token was
granted, is about the declaration, and bears the signature of a certificate for time stamps that was
valid at its time and comes from a root in the token or on this machine. Anyone can make such a
root. A reader who doubts the authority runs ``openssl ts -verify`` with the certificate of an
authority that they trust.
"""

import hashlib
import os
import queue
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nip_core.distribution import how_to_install
from nip_core.errors import CorruptionError, ServerError, SettingsError
from nip_core.proxies import plain_http_client
from nip_core.redaction import is_address, printable, show_address
from nip_core.run_store.store import Store
from nip_study.declare.declaration import declaration_path, timestamp_path

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from rfc3161_client import TimeStampResponse

_OPTION = "--timestamp"
_TYPE = "application/timestamp-query"
_TIMEOUT_S = 30.0
_LARGEST = 1 << 20  # bytes of a reply; one with certificates has some thousand
_SIGNED_MESSAGE = bytes.fromhex("06092a864886f70d010702")  # the type of a token, in DER


@dataclass(frozen=True)
class Stamp:
    """The content of a token."""

    at: datetime
    """UTC, by the clock of the authority."""

    @property
    def time(self) -> str:
        """Return when the file existed: UTC, ISO 8601."""
        return self.at.isoformat(timespec="seconds")


def check_authority(url: str) -> None:
    """Raise SettingsError for an address that can't be asked, and where the library is missing."""
    if not is_address(url):
        raise SettingsError(
            f"{_OPTION} {show_address(url)}: give the address of a time-stamping authority "
            "(RFC 3161) that begins with http:// or https://"
        )
    _check_library()


def stamp(
    store: Store, sweep: str, url: str, environment: Mapping[str, str] = os.environ
) -> tuple[Stamp, bool]:
    """Put a token over the declaration of a sweep beside it; return it, and whether it is new.

    One that is there already and is about this declaration stays, since the older one says more.

    Raises:
        SettingsError: the address can't be asked, the library is missing, or this machine does not
            know the root of the authority's certificate.
        ServerError: no answer, or one that is no token over this declaration.
    """
    check_authority(url)
    from rfc3161_client import HashAlgorithm, TimestampRequestBuilder

    content = store.get(declaration_path(sweep))
    try:
        stamp = read_stamp(store, sweep)
    except CorruptionError:  # of no use
        stamp = None
    if stamp is not None:
        return stamp, False
    query = TimestampRequestBuilder(content, HashAlgorithm.SHA256).build()
    reply = _post(url, query.as_bytes(), environment)
    try:
        token = _verify(reply, content, query.nonce)
    except CorruptionError as error:
        raise ServerError(
            f"{_OPTION} {show_address(url)}: {error}; ask again, or another authority"
        ) from None
    store.put(timestamp_path(sweep), reply)
    return token, True


def read_stamp(store: Store, sweep: str) -> Stamp | None:
    """Read the token that is beside the declaration of a sweep; None where there is none.

    Raises CorruptionError for one that is about another file, is forged or can't be read, and
    SettingsError where the library or the root of the authority's certificate is missing.
    """
    path = timestamp_path(sweep)
    if not store.exists(path):
        return None
    return check_token(store.get(path), store.get(declaration_path(sweep)), path)


def check_token(token: bytes, content: bytes, path: str) -> Stamp:
    """Read the token at `path`, which is to be about a file with this content.

    Raises the errors of `read_stamp`.
    """
    _check_library()
    try:
        return _verify(token, content, None)
    except (CorruptionError, SettingsError) as error:
        raise type(error)(f"{path}: {error}") from None


def _verify(reply: bytes, content: bytes, nonce: int | None) -> Stamp:
    """Verify that a reply holds a granted token over this content, with the nonce of a query.

    Raises CorruptionError, and SettingsError where the root of a certificate is not known.
    """
    from cryptography.x509 import load_der_x509_certificate
    from rfc3161_client import VerificationError, VerifierBuilder

    token = _read_granted(reply)
    # The library raises ValueError, and the exceptions of `cryptography`, at broken fields.
    try:
        moment = token.tst_info.gen_time.replace(microsecond=0, tzinfo=UTC)
        sha256 = token.tst_info.message_imprint.message
        certificates = [load_der_x509_certificate(one) for one in token.signed_data.certificates]
        roots = [*_list_roots(), *(one for one in certificates if one.issuer == one.subject)]
        verifier = VerifierBuilder(roots=roots, nonce=nonce).build()
    except Exception as error:
        raise CorruptionError(f"a token that can't be read ({printable(str(error))})") from None
    if sha256 != hashlib.sha256(content).digest():
        raise CorruptionError(
            f"is about another file than the declaration (SHA-256 {sha256.hex()[:16]})"
        )
    try:
        verifier.verify_message(token, content)
    except VerificationError as error:
        _refuse_unknown_root(certificates, roots)
        raise CorruptionError(f"the token is not genuine ({printable(str(error))})") from None
    return Stamp(moment)


def _read_granted(reply: bytes) -> "TimeStampResponse":
    """Parse the reply of an authority. Raises CorruptionError where it grants no token."""
    from rfc3161_client import PKIStatus, decode_timestamp_response

    try:
        token = decode_timestamp_response(_sort_certificates(reply))
        status, reasons = PKIStatus(token.status), token.status_string
    except (ValueError, IndexError):
        raise CorruptionError("no reply of a time-stamping authority (RFC 3161)") from None
    if status != PKIStatus.GRANTED:
        reason = " ".join([status.name.lower(), *reasons])
        raise CorruptionError(printable(f"no token was granted: {reason}"))
    return token


def _list_roots() -> "list[Certificate]":
    """List the root certificates of this machine: those that HTTPS goes by."""
    import httpx
    from cryptography.x509 import load_der_x509_certificate

    context = httpx.create_ssl_context()
    return [load_der_x509_certificate(one) for one in context.get_ca_certs(binary_form=True)]


def _refuse_unknown_root(certificates: "list[Certificate]", roots: "list[Certificate]") -> None:
    """Raise SettingsError where a certificate of a token has an issuer that is not there."""
    subjects = {one.subject for one in (*certificates, *roots)}
    for one in certificates:
        if one.issuer not in subjects:
            raise SettingsError(
                f"the root {printable(one.issuer.rfc4514_string())} of the authority's certificate "
                "is neither in the token nor on this machine, so its signature can't be verified; "
                "SSL_CERT_FILE=FILE names a file with this root"
            )


def _sort_certificates(reply: bytes) -> bytes:
    """Sort the certificates of a token, which may stand in any order; the library wants this one.

    OpenSSL puts the signer's first, as RFC 5652 asks for no order; no signature covers the order.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs7

    start = reply.find(_SIGNED_MESSAGE) - 4  # its tag and length, of 256 to 65,535 bytes
    if start < 0:  # no token was granted
        return reply
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of another order than the sorted one
        shown = pkcs7.load_der_pkcs7_certificates(reply[start:])
    certificates = [one.public_bytes(Encoding.DER) for one in shown]
    return reply.replace(b"".join(certificates), b"".join(sorted(certificates)), 1)


def _check_library() -> None:
    """Raise SettingsError where the library is not installed."""
    try:
        import rfc3161_client  # noqa: F401
    except ImportError:
        raise SettingsError(
            "a time stamp needs the package rfc3161-client, which is not there: "
            f"{how_to_install('timestamps')}"
        ) from None


def _post(url: str, query: bytes, environment: Mapping[str, str]) -> bytes:
    """Ask an authority. Raises ServerError for anything but an answer in time."""
    results: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()

    def ask() -> None:
        try:
            results.put(_receive(url, query, environment))
        except BaseException as error:  # raised below, for the caller
            results.put(error)

    # The client's deadlines are for one piece each, and headers may come byte by byte for ever. A
    # thread that is no longer awaited ends with the process.
    threading.Thread(target=ask, name="time stamp", daemon=True).start()
    try:
        result = results.get(timeout=_TIMEOUT_S)
    except queue.Empty:
        raise _too_late(url) from None
    if isinstance(result, BaseException):
        raise result
    return result


def _too_late(url: str) -> ServerError:
    return ServerError(
        f"{_OPTION} {show_address(url)}: no answer within {_TIMEOUT_S:g} s; ask again later"
    )


def _receive(url: str, query: bytes, environment: Mapping[str, str]) -> bytes:
    import httpx

    place = f"{_OPTION} {show_address(url)}"
    headers = {"content-type": _TYPE, "accept": "application/timestamp-reply"}
    content = b""
    try:
        with (
            plain_http_client(url, environment) as client,
            client.stream(
                "POST", url, content=query, headers=headers, timeout=_TIMEOUT_S
            ) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                raise ServerError(
                    f"{place}: answered with status {answer.status_code} in the place of a token; "
                    "is this the address of a time-stamping authority?"
                )
            for part in answer.iter_bytes():
                content += part
                if len(content) > _LARGEST:
                    raise ServerError(f"{place}: its answer is too long for a token")
    except httpx.TimeoutException:
        raise _too_late(url) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(
            f"{place}: can't be reached ({str(error) or type(error).__name__}); where there is no "
            "network, leave it out and ask later: the same command does"
        ) from None
    return content
