"""Root without the right to write everywhere, so that what a user is refused is refused here, too."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION = 0x20080522  # of the structures below, two of them for 64 capabilities
_OVERRIDE = 1  # CAP_DAC_OVERRIDE
_PR_CAPBSET_DROP = 24


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def end_override() -> None:
    """Before another program is executed by this process: it is as `as_users_are`, for good."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _OVERRIDE, 0, 0, 0)


@contextmanager
def as_users_are() -> Iterator[None]:
    """The permissions of files hold for this thread, whoever it belongs to. Raises OSError."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = _Header(_VERSION, 0), (_Data * 2)()

    def call(function: str) -> None:
        if getattr(libc, function)(ctypes.byref(header), data):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    call("capget")
    before = data[0].effective
    data[0].effective = before & ~(1 << _OVERRIDE)
    call("capset")
    try:
        yield
    finally:
        data[0].effective = before
        call("capset")
