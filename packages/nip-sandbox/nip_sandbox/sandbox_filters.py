"""The kernel's refusals to a sandbox's code under any user: system calls and paths.

    make_path_rules   a Landlock ruleset: which directories may be read, which written
    confine           be held by it, for good; it also hides every process but the sandbox's own
    make_call_filter  a seccomp program: which system calls fail
    filter_calls      be held by it, for good

Both pass to every process that the code starts. Where the kernel has no Landlock, `make_path_rules`
gives None; on a machine whose numbers of system calls are not listed here, `make_call_filter` does.

Memory that no limit on a process counts is refused: System V and POSIX shared memory and queues,
memfd, new namespaces (and with them mounts of memory), io_uring. So are calls that reach other
processes (ptrace, their memory, files and limits) and calls that open a connection. Used by
`sandbox_child` alone, which runs without site-packages: nothing is imported but the standard
library.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Sequence
from typing import Any

_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# Numbers on x86_64 and aarch64; 0: there is no such call.
_REFUSED = {
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
    "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "msgget": (68, 186),
    "mq_open": (240, 180), "io_uring_setup": (425, 425), "unshare": (272, 97),
    "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440), "kcmp": (312, 272), "perf_event_open": (298, 241),
    "bpf": (321, 280), "userfaultfd": (323, 282), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "open_by_handle_at": (304, 265),
}  # fmt: skip
# Calls that change files by their names alone, which Landlock doesn't see.
_ATTRIBUTES = {
    "chmod": (90, 0), "fchmodat": (268, 53), "fchmodat2": (452, 452), "utime": (132, 0),
    "utimes": (235, 0), "futimesat": (261, 0), "utimensat": (280, 88), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469),
}  # fmt: skip
_SOCKET, _CLONE, _CLONE3, _PRLIMIT64 = (41, 198), (56, 220), (435, 435), (302, 261)
_NEW_NAMESPACES = 0x7E020000  # the flags of clone
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # places in struct seccomp_data; little-endian
_SET_SECCOMP, _FILTER_MODE = 22, 2

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_NO_SOCKETS_NO_SIGNALS = 3  # by name to sockets, and signals, of processes outside
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache",
    "/etc/localtime", "/etc/timezone", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
    "/etc/mime.types",
)  # fmt: skip
"""What an interpreter looks up besides its own directories."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("fd", ctypes.c_int32))


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _fail(number: int, error: int) -> bytes:
    return _instruction(_EQUAL, number, 0, 1) + _instruction(_RETURN, _FAIL | error)


def make_call_filter(libc: Any, network: bool, attributes: bool) -> bytes | None:
    """The program for this machine; `network` lets sockets pass, `attributes` chmod and its like.

    A refused call fails with EPERM, a socket as where no protocol is known.
    """
    machine = _MACHINES.get(os.uname().machine)
    if libc is None or machine is None or sys.maxsize < 2**32:
        return None
    libc.prctl(_SET_SECCOMP, ctypes.c_ulong(_FILTER_MODE), None, 0, 0)
    if ctypes.get_errno() != errno.EFAULT:  # no program is an error only where there are some
        return None
    arch, column = machine
    refusals = {**_REFUSED, **({} if attributes else _ATTRIBUTES)}
    program = [
        # 1. Another instruction set would have other numbers.
        _instruction(_LOAD, _ARCH),
        _instruction(_EQUAL, arch, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
    ]
    if column == 0:
        program += [
            _instruction(_AT_LEAST, _X32, 0, 1),
            _instruction(_RETURN, _FAIL | errno.ENOSYS),
        ]
    # 2. Calls that always fail. clone3 hides its flags; the C library goes back to clone.
    program += [_fail(row[column], errno.EPERM) for row in refusals.values() if row[column]]
    program.append(_fail(_CLONE3[column], errno.ENOSYS))
    if not network:
        program.append(_fail(_SOCKET[column], errno.EAFNOSUPPORT))
    # 3. Calls that fail with some arguments: clone for namespaces, limits of another process.
    program += [
        _instruction(_EQUAL, _CLONE[column], 0, 4),
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_ANY_BIT, _NEW_NAMESPACES, 0, 1),
        _instruction(_RETURN, _FAIL | errno.EPERM),
        _instruction(_RETURN, _ALLOW),
        _instruction(_EQUAL, _PRLIMIT64[column], 0, 3),
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_EQUAL, 0, 1, 0),
        _instruction(_RETURN, _FAIL | errno.EPERM),
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def filter_calls(libc: Any, program: bytes) -> None:
    """Hold this process to `program`; it must have given up new privileges.

    Raises:
        OSError: the kernel has no such filters.
    """
    code = ctypes.create_string_buffer(program, len(program))
    whole = _Program(len(program) // 8, ctypes.cast(code, ctypes.c_void_p))
    mode = ctypes.c_ulong(_FILTER_MODE)
    if libc.prctl(_SET_SECCOMP, mode, ctypes.byref(whole), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no filter of system calls")


def make_path_rules(libc: Any, readable: Sequence[str], writable: Sequence[str]) -> int | None:
    """A ruleset as a file descriptor: files below other directories can't be opened."""
    if libc is None:
        return None
    version = _call(libc, _CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if version < 1:
        return None
    handled = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    scoped = _NO_SOCKETS_NO_SIGNALS if version >= 6 else 0
    attributes = (ctypes.c_uint64 * 3)(handled, 0, scoped)
    size = ctypes.c_size_t(24 if scoped else 8)
    ruleset = _call(libc, _CREATE_RULESET, ctypes.byref(attributes), size, ctypes.c_uint(0))
    if ruleset < 0:
        return None
    devices = _READ_FILE | _WRITE_FILE
    for names, access in (
        ((*_SYSTEM, *readable), _READ),
        (writable, handled),
        (_DEVICES, devices),
    ):
        for path in names:
            _allow(libc, ruleset, path, access & handled)
    return ruleset


def _call(libc: Any, number: int, *arguments: Any) -> int:
    return int(libc.syscall(ctypes.c_long(number), *arguments))


def _allow(libc: Any, ruleset: int, path: str, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not there, so no rule is needed
        return
    if not os.path.isdir(path):
        access &= _ON_FILES
    rule = _PathBeneath(access, place)
    _call(libc, _ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), ctypes.byref(rule), 0)
    os.close(place)


def confine(libc: Any, ruleset: int) -> None:
    """Hold this process to `ruleset`; it must have given up new privileges.

    Raises:
        OSError: the kernel refuses.
    """
    if _call(libc, _RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0)) != 0:
        raise OSError(ctypes.get_errno(), "no rules on paths")
