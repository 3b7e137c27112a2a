"""A memory cgroup for measurements (version 1 or 2; needs root), and dropping the page cache."""
import os
import subprocess


class Group:
    """A memory cgroup of this many megabytes. run() runs one command in it."""

    def __init__(self, megabytes):
        root, limit = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        self.peak_file = "memory.max_usage_in_bytes"
        if not os.path.isdir(root):
            root, limit, self.peak_file = "/sys/fs/cgroup", "memory.max", "memory.peak"
        self.path = os.path.join(root, f"hcache-bench-{os.getpid()}")
        os.mkdir(self.path)
        with open(os.path.join(self.path, limit), "w") as f:
            f.write(str(megabytes * 1000000))

    def run(self, command):
        def enter():
            with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
                f.write(str(os.getpid()))
        return subprocess.run(command, capture_output=True, text=True, preexec_fn=enter)

    def peak(self):
        """Returns the largest number of bytes that the group has held, with page cache and kernel
        memory."""
        with open(os.path.join(self.path, self.peak_file)) as f:
            return int(f.read())

    def close(self):
        os.rmdir(self.path)


def drop_cache(folder):
    """Drops the page cache of a folder's files."""
    for base, _, names in os.walk(folder):
        for name in names:
            f = os.open(os.path.join(base, name), os.O_RDONLY)
            os.fsync(f)
            os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(f)
