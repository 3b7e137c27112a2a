"""Ports for servers that are killed and started again at the same address. As a program it prints
one port.

The system has a range of ports for programs that ask for any port and for outgoing connections.
While a server is down, another program could get the server's port from that range, even the client
that tries to reach the server. So these ports lie below the range."""
import random
import socket


def first_of_system():
    """Returns the first port of the system's own range."""
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
