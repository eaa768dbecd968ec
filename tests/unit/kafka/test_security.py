"""The security settings of the connection: what is refused, and what the Java client gets instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from switchyard.errors import InputError
from switchyard.kafka import clients
from switchyard.kafka.client_settings import client_properties, to_java
from switchyard.kafka.clients import ErrorListener, diagnose
from switchyard.kafka.new_records import LoggingListener
from switchyard.kafka.security import SECRETS, secret_values
from switchyard.wording import hide_values

CANARY = "hunter2"
BROKER = {"bootstrap.servers": "b:9093"}
TLS = {**BROKER, "security.protocol": "SSL"}
PLAIN = {
    **BROKER,
    "security.protocol": "SASL_SSL",
    "sasl.mechanisms": "PLAIN",
    "sasl.username": "me",
    "sasl.password": CANARY,
}
OIDC = {
    **BROKER,
    "security.protocol": "SASL_SSL",
    "sasl.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": CANARY,
    "sasl.oauthbearer.token.endpoint.url": "https://login.example.org/token",
}
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"
METHOD = "ssl.endpoint.identification.algorithm"


def without(properties: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in properties.items() if key != name}


def assert_refused(properties: dict[str, str], name: str, why: str) -> None:
    with pytest.raises(InputError, match=rf"^the Kafka setting {re.escape(name)} {re.escape(why)}") as refused:
        client_properties(properties)
    assert CANARY not in str(refused.value)
    assert str(refused.value).endswith("(connection kafka_default)")


@pytest.mark.parametrize(
    ("properties", "name", "why"),
    [
        ({**BROKER, "security.protocol": CANARY}, "security.protocol", "must be one of PLAINTEXT, SSL, SASL_SSL"),
        ({**PLAIN, "security.protocol": "SASL_PLAINTEXT"}, "security.protocol", "must be one of"),
        ({**PLAIN, "sasl.mechanisms": CANARY}, "sasl.mechanisms", "must be one of PLAIN, SCRAM-SHA-256, SCRAM"),
        ({**PLAIN, "sasl.mechanisms": "GSSAPI"}, "sasl.mechanisms", "must be one of PLAIN"),
        (without(PLAIN, "sasl.mechanisms"), "sasl.mechanisms", "must be one of PLAIN"),
        (without(PLAIN, "sasl.username"), "sasl.username", "is missing: PLAIN needs it"),
        ({**PLAIN, "sasl.password": ""}, "sasl.password", "is missing: PLAIN needs it"),
        (without(PLAIN, "security.protocol"), "sasl.mechanisms", "needs security.protocol to be SASL_SSL"),
        ({**TLS, "sasl.password": CANARY}, "sasl.password", "needs security.protocol to be SASL_SSL"),
        ({**BROKER, "ssl.ca.pem": CANARY}, "ssl.ca.pem", "needs security.protocol to be SSL or SASL_SSL"),
        ({**TLS, "ssl.crl.location": CANARY}, "ssl.crl.location", "cannot be passed on to both clients"),
        ({**TLS, "ssl.cipher.suites": CANARY}, "ssl.cipher.suites", "cannot be passed on to both clients"),
        ({**TLS, "ssl.enabled.protocols": CANARY}, "ssl.enabled.protocols", "must name TLSv1.2 or TLSv1.3"),
        ({**TLS, "ssl.enabled.protocols": "TLSv1.2,TLSv1.1"}, "ssl.enabled.protocols", "must name TLSv1.2 or TLSv1.3"),
        ({**OIDC, "sasl.login.retry.backoff.ms": CANARY}, "sasl.login.retry.backoff.ms", "must be a number"),
        ({**OIDC, "sasl.login.class": CANARY}, "sasl.login.class", "cannot be passed on to both clients"),
        (
            {**TLS, "enable.ssl.certificate.verification": "false"},
            "enable.ssl.certificate.verification",
            "must stay true: Spark's client always verifies",
        ),
        ({**TLS, "ssl.ca.pem": CANARY, "ssl.ca.location": "x"}, "ssl.ca.pem", "and ssl.ca.location exclude each other"),
        ({**TLS, "ssl.key.pem": CANARY}, "ssl.certificate.location", "is missing: ssl.key is of no use without it"),
        ({**TLS, "ssl.certificate.pem": CANARY}, "ssl.key.location", "is missing: ssl.certificate is of no use"),
        (
            {**TLS, "ssl.certificate.pem": "x", "ssl.key.pem": CANARY, "ssl.keystore.location": "x"},
            "ssl.keystore.location",
            "and ssl.key exclude each other",
        ),
        ({**TLS, METHOD: CANARY}, METHOD, "must be https or none"),
        ({**OIDC, "sasl.oauthbearer.method": "default"}, "sasl.oauthbearer.method", "must be oidc"),
        ({**OIDC, "sasl.oauthbearer.sub.claim.name": f"{CANARY} x"}, "sasl.oauthbearer.sub.claim.name", "must be the"),
        (without(OIDC, "sasl.oauthbearer.client.id"), "sasl.oauthbearer.client.id", "is missing: OAUTHBEARER needs"),
        (without(OIDC, "sasl.oauthbearer.client.secret"), "sasl.oauthbearer.client.secret", "is missing"),
        *[
            ({**OIDC, "sasl.oauthbearer.scope": f"{CANARY}{character}"}, "sasl.oauthbearer.scope", "may hold neither &")
            for character in '&+%#"\\\tü'
        ],
        (
            {**OIDC, "sasl.oauthbearer.extensions": f"log-id={CANARY}"},
            "sasl.oauthbearer.extensions",
            "must be name=value pairs with commas between",
        ),
        *[
            (
                {**OIDC, "sasl.oauthbearer.token.endpoint.url": url},
                "sasl.oauthbearer.token.endpoint.url",
                "must be an https",
            )
            for url in (
                f"http://{CANARY}.example.org/",
                f"https://me:{CANARY}@example.org/",
                f"file:///{CANARY}",
                CANARY,
            )
        ],
    ],
)
def test_what_does_not_work_is_one_sentence_with_the_name_and_without_the_value(
    properties: dict[str, str], name: str, why: str
) -> None:
    assert_refused(properties, name, why)


def test_names_and_cases_of_librdkafka_mean_the_same() -> None:
    given = without(PLAIN, "sasl.mechanisms") | {"sasl.mechanism": "scram-sha-256", "security.protocol": "sasl_ssl"}
    assert client_properties(given) == PLAIN | {"sasl.mechanisms": "SCRAM-SHA-256"}


def test_without_security_the_java_client_gets_the_address_and_no_bookkeeping() -> None:
    given = {**BROKER, "group.id": "g", "enable.auto.commit": "false", "auto.offset.reset": "earliest"}
    assert to_java(client_properties(given)) == {**BROKER, "security.protocol": "PLAINTEXT"}


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", "plain.Plain"), ("SCRAM-SHA-256", "scram.Scram"), ("SCRAM-SHA-512", "scram.Scram")],
)
def test_a_password_becomes_a_login_module(mechanism: str, module: str) -> None:
    java = to_java({**PLAIN, "sasl.mechanisms": mechanism, "sasl.password": 'a"b\\c\nd'})
    login = f"org.apache.kafka.common.security.{module}LoginModule"
    assert java == {
        **BROKER,
        "security.protocol": "SASL_SSL",
        METHOD: "https",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": rf'{login} required username="me" password="a\"b\\c\nd";',
    }


def test_a_client_of_an_identity_provider() -> None:
    more = {
        "sasl.oauthbearer.scope": "api://a/.default b",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,poolId=p=2",
        "https.ca.location": "/etc/ca.pem",
    }
    java = to_java(client_properties(OIDC | more))
    package = "org.apache.kafka.common.security.oauthbearer"
    assert java == {
        **BROKER,
        "security.protocol": "SASL_SSL",
        METHOD: "https",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example.org/token",
        "sasl.jaas.config": f'{package}.OAuthBearerLoginModule required clientId="me" password="" '
        f'clientSecret="{CANARY}" scope="api://a/.default b" extension_logicalCluster="lkc-1" extension_poolId="p=2" '
        'ssl.truststore.type="PEM" ssl.truststore.location="/etc/ca.pem";',
    }


def test_a_token_may_come_from_this_machine_without_tls() -> None:
    for host in ("localhost", "127.0.0.1:8080", "[::1]:8080"):
        client_properties({**OIDC, "sasl.oauthbearer.token.endpoint.url": f"http://{host}/token"})


def write_key(key: rsa.RSAPrivateKey, form: serialization.PrivateFormat, password: str = "") -> str:
    secret = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, secret).decode()


def test_certificates_as_files_or_as_text(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    old, new = serialization.PrivateFormat.TraditionalOpenSSL, serialization.PrivateFormat.PKCS8
    (tmp_path / "client.crt").write_text(CERTIFICATE)
    (tmp_path / "client.key").write_text(write_key(key, new, CANARY))
    files = {
        **TLS,
        "ssl.ca.location": str(tmp_path / "ca.crt"),
        "ssl.certificate.location": str(tmp_path / "client.crt"),
        "ssl.key.location": str(tmp_path / "client.key"),
        "ssl.key.password": CANARY,
        METHOD: "none",
    }
    identity = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": CERTIFICATE,
        "ssl.keystore.key": write_key(key, new),
    }
    common = {**TLS, **identity, METHOD: "", "ssl.truststore.type": "PEM"}
    assert to_java(client_properties(files)) == common | {"ssl.truststore.location": str(tmp_path / "ca.crt")}
    text = {**TLS, "ssl.ca.pem": CERTIFICATE, "ssl.certificate.pem": CERTIFICATE, METHOD: "none"}
    java = to_java(client_properties(text | {"ssl.key.pem": write_key(key, old)}))
    assert java == common | {"ssl.truststore.certificates": CERTIFICATE}


def test_without_an_authority_of_ones_own_the_usual_ones_are_trusted() -> None:
    for properties in (TLS, TLS | {"ssl.ca.location": "probe"}):
        assert to_java(client_properties(properties)) == {**TLS, METHOD: "https"}


def test_a_key_store() -> None:
    java = to_java(client_properties({**TLS, "ssl.keystore.location": "/x.p12", "ssl.keystore.password": CANARY}))
    assert {name: value for name, value in java.items() if "key" in name} == {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": "/x.p12",
        "ssl.keystore.password": CANARY,
        "ssl.key.password": CANARY,
    }


def test_files_that_spark_could_not_use_are_named_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ssl\.ca\.location must be one file .*, not a folder"):
        to_java({**TLS, "ssl.ca.location": str(tmp_path)})
    locked = tmp_path / "client.key"
    locked.write_text(write_key(rsa.generate_private_key(65537, 2048), serialization.PrivateFormat.PKCS8, CANARY))
    pair = {**TLS, "ssl.certificate.pem": CERTIFICATE, "ssl.key.location": str(locked)}
    for wrong in (pair, pair | {"ssl.key.password": f"{CANARY}3"}, pair | {"ssl.key.location": __file__}):
        with pytest.raises(InputError, match=r"ssl\.key\.location holds no PEM key that .*: check both") as refused:
            to_java(wrong)
        assert CANARY not in str(refused.value)
    with pytest.raises(InputError, match=r"ssl\.key\.location cannot be read \(FileNotFoundError\)"):
        to_java(pair | {"ssl.key.location": str(tmp_path / "none")})


@given(secret=st.text(min_size=1), before=st.text(), name=st.sampled_from(SECRETS))
def test_a_secret_is_hidden_in_any_text(secret: str, before: str, name: str) -> None:
    properties = {name: secret}
    assert secret_values(properties) == [secret]
    shown = hide_values(f"{before}{secret}", secret_values(properties))
    assert shown == f"{before}{secret}".replace(secret, "***")


@pytest.mark.parametrize(
    ("code", "text", "sentence"),
    [
        (KafkaError._AUTHENTICATION, "SASL authentication error: Authentication failed", clients.LOGIN_REFUSED),
        (KafkaError._AUTHENTICATION, 'Failed to acquire SASL OAUTHBEARER token: {"error": 1}', clients.NO_TOKEN),
        (KafkaError._AUTHENTICATION, "handshake failed: Broker: Unsupported SASL mechanism: x", clients.NO_MECHANISM),
        (KafkaError.UNSUPPORTED_SASL_MECHANISM, "", clients.NO_MECHANISM),
        (KafkaError._SSL, "SSL routines::certificate verify failed: broker certificate", clients.UNTRUSTED),
        (KafkaError._TRANSPORT, "ssl/tls alert bad certificate: SSL alert number 42", clients.CLIENT_REFUSED),
        (KafkaError._TRANSPORT, "tlsv13 alert certificate required: SSL alert number 116", clients.CLIENT_REFUSED),
        (KafkaError._TRANSPORT, "sslv3 alert certificate expired: SSL alert number 45", clients.CLIENT_EXPIRED),
        (KafkaError._TRANSPORT, "SSL handshake failed: connecting to a PLAINTEXT broker listener?", clients.NO_TLS),
        (KafkaError._TRANSPORT, "Connect to ipv4#127.0.0.1:1 failed: Connection refused", None),
        (KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down", None),
    ],
)
def test_what_librdkafka_reports_becomes_one_sentence(code: int, text: str, sentence: str | None) -> None:
    assert diagnose(code, text) == sentence


def test_a_token_that_the_broker_refuses_is_not_a_password() -> None:
    assert diagnose(KafkaError._AUTHENTICATION, "invalid_token", "OAUTHBEARER") == clients.TOKEN_REFUSED


def test_a_refused_token_is_told_as_one_wherever_it_is_met(caplog: pytest.LogCaptureFixture) -> None:
    """By a call that fails, and by the log of the control watcher, which makes no call."""
    listener, refused = LoggingListener(OIDC), KafkaError(KafkaError._AUTHENTICATION, "invalid_token")
    assert str(listener.explain(KafkaException(refused), "cannot read")) == clients.TOKEN_REFUSED
    listener(refused)
    assert caplog.messages == [f"Kafka: {clients.TOKEN_REFUSED}"]
    assert str(LoggingListener(PLAIN).explain(KafkaException(refused), "cannot read")) == clients.LOGIN_REFUSED


def test_a_broker_that_gives_no_answer_may_be_that_of_either_connection() -> None:
    error = KafkaException(KafkaError(KafkaError._TRANSPORT))
    said = str(ErrorListener(PLAIN).explain(error, "cannot read the control topic control"))
    assert said.startswith("cannot read the control topic control: ")
    assert said.endswith("is the connection kafka_default, or kafka_control for the control topic, right?")
