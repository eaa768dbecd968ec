"""An OIDC provider for the tests: gives a signed token for a client id and its secret, and shows its public key.

As some providers do, it writes who the client is into `client_id` and into no other claim.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

ISSUER = "https://issuer.example.org"
AUDIENCE = "kafka"


@dataclass
class IdentityProvider:
    client_id: str
    client_secret: str
    token_url: str = ""
    keys_url: str = ""
    scopes: list[str] = field(default_factory=list)
    """What was asked for, call by call"""
    _key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    def answer(self, authorization: str, body: str) -> tuple[int, dict[str, Any]]:
        expected = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        if authorization != f"Basic {expected}":
            return 401, {"error": "invalid_client", "error_description": "no such client"}
        form = parse_qs(body)
        if form.get("grant_type") != ["client_credentials"]:
            return 400, {"error": "unsupported_grant_type"}
        self.scopes.append(form.get("scope", [""])[0])
        return 200, {"access_token": self.sign(form.get("scope", [""])[0]), "token_type": "Bearer", "expires_in": 300}

    def sign(self, scope: str) -> str:
        now = int(time.time())
        claims = {
            "client_id": self.client_id,
            "iss": ISSUER,
            "aud": AUDIENCE,
            "iat": now,
            "exp": now + 300,
            "scope": scope,
        }
        signed = f"{_encode({'alg': 'RS256', 'kid': 'one', 'typ': 'JWT'})}.{_encode(claims)}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64(signature)}"

    def keys(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        n, e = (_base64(number.to_bytes((number.bit_length() + 7) // 8)) for number in (numbers.n, numbers.e))
        return {"keys": [{"kty": "RSA", "kid": "one", "use": "sig", "alg": "RS256", "n": n, "e": e}]}


@contextmanager
def running_provider(client_id: str, client_secret: str, certificate: Path, key: Path) -> Iterator[IdentityProvider]:
    """Tokens over TLS, as clients demand; the keys, which the broker reads, without."""
    provider = IdentityProvider(client_id, client_secret)
    tokens, keys = (ThreadingHTTPServer(("127.0.0.1", 0), _handler(provider)) for _ in range(2))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    tokens.socket = context.wrap_socket(tokens.socket, server_side=True)
    provider.token_url = f"https://localhost:{tokens.server_port}/token"
    provider.keys_url = f"http://127.0.0.1:{keys.server_port}/keys"
    threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in (tokens, keys)]
    for thread in threads:
        thread.start()
    try:
        yield provider
    finally:
        for server, thread in zip((tokens, keys), threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


def _handler(provider: IdentityProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, provider.keys())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
            self._send(*provider.answer(self.headers.get("Authorization", ""), body))

        def _send(self, status: int, document: dict[str, Any]) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing: a test's output is for its failures."""

    return Handler


def _encode(document: dict[str, Any]) -> str:
    return _base64(json.dumps(document).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
