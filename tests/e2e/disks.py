"""Shared by the tests of full disks and of disks without permissions: a small tmpfs, a full disk,
and a user without rights."""
import os
import subprocess

from tap import PATIENCE, skip

NOBODY = 65534
IS_ROOT = os.geteuid() == 0
AS_USER = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"] if IS_ROOT else []


def can(cmd):
    try:
        return subprocess.run(cmd, capture_output=True, timeout=PATIENCE).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def mounted(tmp, options, body, name):
    at = os.path.join(tmp, "mnt")
    os.makedirs(at, exist_ok=True)
    if os.geteuid() != 0 or not can(["mount", "-t", "tmpfs", "-o", options, "none", at]):
        skip(name, "cannot mount a tmpfs here")
        return
    try:
        body(at)
    finally:
        subprocess.run(["umount", "-l", at], check=False)


def fill(at):
    """Fills the disk until no block is left."""
    with open(os.path.join(at, "ballast"), "wb", buffering=0) as f:
        for n in (1 << 16, 4096):
            try:
                while f.write(b"x" * n) == n:
                    pass
            except OSError:
                pass


def folder_of(tmp, name, owner, mode):
    path = os.path.join(tmp, name)
    os.mkdir(path)
    if IS_ROOT:
        os.chown(path, owner, owner)
    os.chmod(path, mode)
    return path
