"""Opens clients of librdkafka, and says in one sentence why one of them cannot do its work.

A call to librdkafka only times out; the reason comes separately, through a callback, which is `ErrorListener`. For a
known reason the sentence is ours. Any other may repeat what a server said, but never a secret.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from switchyard.deadline import Deadline
from switchyard.errors import AccessError, InputError, SwitchyardError
from switchyard.kafka.security import OAUTHBEARER, secret_values
from switchyard.kafka.translate_settings import for_librdkafka
from switchyard.wording import hide_values

T = TypeVar("T")
quiet = logging.getLogger("switchyard.kafka.client_settings")
# Python prints the warnings of a logger without a handler to stderr: on the terminal of the command line.
quiet.addHandler(logging.NullHandler())
TIMEOUT_SECONDS = 10.0
_SLICE_SECONDS = 1.0
_PROBE_SECONDS = 3.0
_ADDRESS = re.compile(r"\w+://\[?([^/]+?)\]?:(\d+)/")
_CONNECTIONS = "the connection kafka_default, or kafka_control for the control topic"
_CONNECTION = f"in {_CONNECTIONS}"
_UNKNOWN_SETTING = re.compile(r'No such configuration property: "([^"]+)"')
_REFUSED_VALUE = re.compile(r'(?:onfiguration property|bool value for) "([^"]+)"')
_CLAIM_FIELD = re.compile(r'JWT response with (valid )?"(?!exp")')
_REFUSED_CERTIFICATE = re.compile(r"alert (bad certificate|certificate|unknown ca|handshake failure|decrypt error)")

NO_TOKEN = (
    "the token endpoint gave no token: check sasl.oauthbearer.client.id, client.secret, scope and token.endpoint.url "
    f"{_CONNECTION}, and https.ca.location if an authority of your own has signed its certificate"
)
NO_CLAIM = (
    "the token lacks the claim that names the client: put the name of another claim into "
    f"sasl.oauthbearer.sub.claim.name {_CONNECTION}"
)
NO_MECHANISM = f"the broker does not offer this kind of login: change sasl.mechanisms {_CONNECTION}"
LOGIN_REFUSED = f"the broker refused the login: check sasl.username and sasl.password {_CONNECTION}"
TOKEN_REFUSED = (
    "the broker refused the token: check the scope, the extensions and the token endpoint "
    f"{_CONNECTION}, and which issuer and audience the broker expects"
)
EXPIRED = "the certificate of the broker has expired: renew it on the broker"
OTHER_NAME = f"the certificate of the broker is for another name: use that name in bootstrap.servers {_CONNECTION}"
UNTRUSTED = (
    "the certificate of the broker is not trusted: put the certificate of the authority that signed it into "
    f"ssl.ca.location {_CONNECTION}"
)
CLIENT_EXPIRED = f"the certificate of this client has expired: put another into ssl.certificate.location {_CONNECTION}"
CLIENT_REFUSED = (
    "the broker refused the certificate of this client, or wants one: check ssl.certificate.location and "
    f"ssl.key.location {_CONNECTION}"
)
NO_TLS = f"the broker does not speak TLS on this port: check bootstrap.servers and security.protocol {_CONNECTION}"


def diagnose(code: int, text: str, mechanism: str | None = None) -> str | None:
    """Translate a report of librdkafka for a person; None when it is not about access."""
    if code in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
        if "Failed to acquire SASL OAUTHBEARER token" in text:
            return NO_CLAIM if _CLAIM_FIELD.search(text) else NO_TOKEN
        if "Unsupported SASL mechanism" in text:
            return NO_MECHANISM
        return TOKEN_REFUSED if mechanism == OAUTHBEARER else LOGIN_REFUSED
    if code == KafkaError.UNSUPPORTED_SASL_MECHANISM:
        return NO_MECHANISM
    if "alert certificate expired" in text:
        return CLIENT_EXPIRED
    if _REFUSED_CERTIFICATE.search(text):
        return CLIENT_REFUSED
    if "certificate verify failed" in text:
        return UNTRUSTED
    if "PLAINTEXT broker listener" in text or "wrong version number" in text:
        return NO_TLS
    return None


class ErrorListener:
    """Keep the newest reason why a client gets no answer. One listener for each client."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = dict(properties)
        self._access_error: tuple[str, str] | None = None

    def __call__(self, error: KafkaError) -> None:
        sentence = self.diagnose(error)
        if sentence is not None:
            self._access_error = (sentence, error.str())

    def diagnose(self, error: KafkaError) -> str | None:
        return diagnose(error.code(), error.str(), self._properties.get("sasl.mechanisms"))

    def forget(self) -> None:
        self._access_error = None

    def raise_access_error(self) -> None:
        if self._access_error is not None:
            sentence, text = self._access_error
            raise AccessError(self._look_closer(text) if sentence == UNTRUSTED else sentence)

    def explain(self, error: KafkaException, what: str) -> SwitchyardError:
        cause = error.args[0]
        if isinstance(cause, KafkaError) and (sentence := self.diagnose(cause)) is not None:
            return AccessError(sentence)
        text = self.hide(_text(error))
        return SwitchyardError(f"{what}: {text}; is the broker up, and is {_CONNECTIONS}, right?")

    def hide(self, text: str) -> str:
        return hide_values(text, secret_values(self._properties))

    def _look_closer(self, text: str) -> str:
        """librdkafka does not say what is wrong with a certificate, so ask OpenSSL with a separate handshake."""
        address = _ADDRESS.search(text)
        fault = find_certificate_fault(address[1], int(address[2]), self._properties) if address else ""
        if "expired" in fault:
            return EXPIRED
        return OTHER_NAME if "mismatch" in fault else UNTRUSTED


def find_certificate_fault(host: str, port: int, properties: Mapping[str, str]) -> str:
    """Return why OpenSSL refuses the certificate of a server; empty when that is not known."""
    location = properties.get("ssl.ca.location", "probe")
    try:
        context = ssl.create_default_context(
            cafile=None if location == "probe" else location, cadata=properties.get("ssl.ca.pem")
        )
        with (
            socket.create_connection((host, port), _PROBE_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return ""
    except ssl.SSLCertVerificationError as error:
        return str(error.verify_message)
    except (OSError, ValueError):
        return ""


def open_client(kind: Callable[..., T], settings: Mapping[str, Any], listener: ErrorListener) -> T:
    given = for_librdkafka(settings)
    try:
        return kind({**given, "error_cb": listener}, logger=quiet)
    except (KafkaException, TypeError, ValueError) as error:
        raise InputError(f"{describe_refusal(listener.hide(_text(error)), given)}; correct {_CONNECTIONS}") from None


def describe_refusal(text: str, settings: Mapping[str, Any]) -> str:
    """Say why librdkafka refuses the settings: which one it means, and no value."""
    if unknown := _UNKNOWN_SETTING.search(text):
        return f"the Kafka setting {unknown[1]} is unknown: remove it, or check how it is spelled"
    if refused := _REFUSED_VALUE.search(text):
        return f"the Kafka setting {refused[1]} has a value that it cannot have"
    hidden = hide_values(text, settings.values(), is_whole=True)
    return f"the Kafka settings are refused: {hidden.strip().removesuffix('.')}"


def list_topics(
    client: Consumer | AdminClient,
    listener: ErrorListener,
    what: str,
    topic: str | None = None,
    deadline: Deadline | None = None,
) -> dict[str, Any]:
    """Return the metadata of all topics or of one. Ask in short slices, as a refusal is reported in between."""
    deadline = deadline or Deadline(TIMEOUT_SECONDS)
    listener.forget()
    while True:
        try:
            asked = {} if topic is None else {"topic": topic}
            return dict(client.list_topics(timeout=_SLICE_SECONDS, **asked).topics)
        except KafkaException as error:
            client.poll(0)
            listener.raise_access_error()
            if deadline.has_passed:
                raise listener.explain(error, what) from None


def _text(error: Exception) -> str:
    cause = error.args[0] if error.args else error
    return cause.str() if isinstance(cause, KafkaError) else str(cause)
