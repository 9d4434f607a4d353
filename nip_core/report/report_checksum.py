"""The checksum in the last line of a report, by which damage is seen.

report_is_whole   whether a report agrees with its last line
add_checksum      a page with that line
"""

from hashlib import sha256

_CHECKSUM = b"<!-- sha256 of the lines above: "


def add_checksum(page: bytes) -> bytes:
    return page + _CHECKSUM + f"{sha256(page).hexdigest()} -->\n".encode()


def report_is_whole(content: bytes) -> bool | None:
    """Compare a report with the checksum in its last line; None for one without a checksum."""
    page, mark, _ = content.rpartition(_CHECKSUM)
    return content == add_checksum(page) if mark else None
