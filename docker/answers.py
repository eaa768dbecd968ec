"""Health check of a container: exits 0 when something accepts connections on the given host and port."""

import socket
import sys

host, port = sys.argv[1:]
try:
    socket.create_connection((host, int(port)), timeout=3).close()
except OSError as error:
    sys.exit(f"{host}:{port} does not answer: {error}")
