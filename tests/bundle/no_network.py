"""Run a command where there is loopback and nothing else: no_network.py COMMAND …

Exit code 77: this system allows no namespaces.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

NEW_USER, NEW_NET = 0x10000000, 0x40000000  # linux/sched.h
SET_FLAGS, UP_AND_RUNNING = 0x8914, 0x41  # linux/sockios.h, linux/if.h
NOT_ALLOWED = 77


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(NEW_NET if user == 0 else NEW_NET | NEW_USER):
        print(os.strerror(ctypes.get_errno()), file=sys.stderr)
        sys.exit(NOT_ALLOWED)
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked, SET_FLAGS, struct.pack("16sH14s", b"lo", UP_AND_RUNNING, b""))
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
