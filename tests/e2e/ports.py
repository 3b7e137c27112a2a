"""Ports for servers that are killed and started again at the same address.  As a program: prints one.

The system gives out its own range to whoever asks for any port, and to outgoing connections: while a server is away, its
port may be taken from that range, even by the client that tries to reach it.  So these ports lie below the range."""
import random
import socket


def first_of_system():
    """The first port that the system gives out by itself."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
        return int(f.read().split()[0])


def free_port():
    end = first_of_system()
    for _ in range(1000):
        port = random.randrange(max(1024, end // 2), end)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise RuntimeError(f"no free port below {end}")


if __name__ == "__main__":
    print(free_port())
