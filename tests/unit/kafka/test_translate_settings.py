"""Kafka settings as people paste them: Java's spelling, JAAS texts, extensions one by one, whole properties files."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from switchyard.errors import InputError
from switchyard.kafka.client_settings import client_properties, parse_properties, to_java
from switchyard.kafka.security import java_security
from switchyard.kafka.translate_settings import JAAS, for_librdkafka, parse_jaas, split_extensions
from switchyard.layout import PROJECT
from tests.unit.kafka.test_security import CANARY, assert_refused

BROKER = {"bootstrap.servers": "b:9093"}
MODULES = "org.apache.kafka.common.security"
PLAIN = f"""\
bootstrap.servers=b:9093
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config={MODULES}.plain.PlainLoginModule required username="me" password="{CANARY}";
"""
SCRAM = f"""\
# as in the broker's own documents
bootstrap.servers=b:9093
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config={MODULES}.scram.ScramLoginModule required \\
  username="me" \\
  password="{CANARY}";
"""
OIDC = f"""\
bootstrap.servers=b:9093
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.oauthbearer.token.endpoint.url=https://login.example.org/oauth2/token
sasl.oauthbearer.client.id=me
sasl.oauthbearer.client.secret={CANARY}
sasl.oauthbearer.sub.claim.name=client_id
sasl.oauthbearer.scope=kafka
sasl.oauthbearer.extensions.logicalCluster=lkc-1
sasl.oauthbearer.extensions.identityPoolId=pool-2
ssl.endpoint.identification.algorithm=HTTPS
"""
# What Confluent Cloud gives for a Java client.
CONFLUENT = f"""\
# Required connection configs for Kafka producer, consumer, and admin
bootstrap.servers=b:9093
security.protocol=SASL_SSL
sasl.jaas.config={MODULES}.plain.PlainLoginModule required username='me' password='{CANARY}';
sasl.mechanism=PLAIN
# Required for correctness in Apache Kafka clients prior to 2.6
client.dns.lookup=use_all_dns_ips

# Best practice for higher availability in Apache Kafka clients prior to 3.0
session.timeout.ms=45000

# Best practice for Kafka producer to prevent data loss
acks=all
default.api.timeout.ms=60000
client.id=ccloud-java-client-1

# Required connection configs for Confluent Cloud Schema Registry
schema.registry.url=https://registry.example.org
basic.auth.credentials.source=USER_INFO
basic.auth.user.info=key:{CANARY}
schema.registry.basic.auth.user.info=key:{CANARY}
"""
JAVA_TUNING = """\
fetch.max.wait.ms=250
receive.buffer.bytes=-1
send.buffer.bytes=131072
buffer.memory=33554432
max.block.ms=60000
max.poll.records=500
max.request.size=1048576
client.dns.lookup=default
partition.assignment.strategy=org.apache.kafka.clients.consumer.CooperativeStickyAssignor
interceptor.classes=io.confluent.monitoring.clients.interceptor.MonitoringConsumerInterceptor
"""
EXTENSION = "sasl.oauthbearer.extensions"
LOGIN = {**BROKER, "security.protocol": "SASL_SSL", "sasl.username": "me", "sasl.password": CANARY}
TOKEN = {
    **BROKER,
    "security.protocol": "SASL_SSL",
    "sasl.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example.org/oauth2/token",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": CANARY,
    "sasl.oauthbearer.sub.claim.name": "client_id",
    "sasl.oauthbearer.scope": "kafka",
    "sasl.oauthbearer.extensions": "identityPoolId=pool-2,logicalCluster=lkc-1",
    "ssl.endpoint.identification.algorithm": "https",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PLAIN, LOGIN | {"sasl.mechanisms": "PLAIN"}),
        (SCRAM, LOGIN | {"sasl.mechanisms": "SCRAM-SHA-512"}),
        (OIDC, TOKEN),
        (f"{OIDC}sasl.oauthbearer.method=OIDC\n", TOKEN),
        (OIDC.replace("HTTPS", "https").replace("\n", "\r\n"), TOKEN),
        (OIDC.replace("oauthbearer.client.", "oauthbearer.client.credentials.client."), TOKEN),
        (f"{PLAIN}key.deserializer=a.b.C\nvalue.serializer : a.b.D\n", LOGIN | {"sasl.mechanisms": "PLAIN"}),
        (f"{OIDC}sasl.oauthbearer.extensions=identityPoolId=pool-2,logicalCluster=lkc-1\n", TOKEN),
        (PLAIN.replace("sasl.mechanism=PLAIN\n", ""), LOGIN | {"sasl.mechanisms": "PLAIN"}),
    ],
)
def test_what_is_pasted_is_the_same_in_every_place(text: str, expected: dict[str, str]) -> None:
    single = parse_properties(text, "a file")
    assert client_properties(single) == expected
    assert client_properties({"properties": text}) == expected
    assert client_properties({"properties": text, "group.id": "g"}) == expected | {"group.id": "g"}
    # What was made one spelling stays as it is, and Java gets the same from both.
    assert client_properties(expected) == expected
    assert to_java(single) == to_java(expected)


@pytest.mark.parametrize("text", [PLAIN, SCRAM, OIDC])
def test_the_documented_command_makes_an_extra_of_a_file(text: str) -> None:
    found = re.search(r"^python (-c '.*') < client\.properties$", (PROJECT / "docs/security.md").read_text(), re.M)
    assert found is not None
    made = subprocess.run(
        [sys.executable, *shlex.split(found[1])], input=text, capture_output=True, text=True, check=True
    )
    assert client_properties(json.loads(made.stdout)) == client_properties({"properties": text})


def test_the_sample_of_confluent_works_as_it_is() -> None:
    properties = client_properties({"properties": CONFLUENT})
    tuning = {
        "client.dns.lookup": "use_all_dns_ips",
        "session.timeout.ms": "45000",
        "acks": "all",
        "default.api.timeout.ms": "60000",
        "client.id": "ccloud-java-client-1",
    }
    assert properties == LOGIN | {"sasl.mechanisms": "PLAIN"} | tuning
    java = to_java(properties)
    assert {name: java[name] for name in tuning} == tuning
    assert CANARY in java.pop(JAAS)
    assert CANARY not in str(java), "the login of the schema registry is for none of our clients"


def test_each_client_gets_the_tuning_that_it_knows() -> None:
    properties = client_properties(BROKER | parse_properties(JAVA_TUNING, "a file"))
    assert client_properties(properties) == properties
    both = {"fetch.wait.max.ms": "250", "socket.send.buffer.bytes": "131072", "message.max.bytes": "1048576"}
    assert for_librdkafka(properties) == BROKER | both
    java = to_java(properties)
    assert (java["fetch.max.wait.ms"], java["send.buffer.bytes"]) == ("250", "131072")
    for name in ("buffer.memory", "max.block.ms", "max.poll.records", "partition.assignment.strategy"):
        assert java[name] == parse_properties(JAVA_TUNING, "a file")[name]
    assert not {"receive.buffer.bytes", "client.dns.lookup", "interceptor.classes"} & set(java)
    words = client_properties(BROKER | {"partition.assignment.strategy": "cooperative-sticky"})
    assert for_librdkafka(words) == words
    assert "partition.assignment.strategy" not in to_java(words)


def test_a_single_setting_counts_more_than_the_pasted_text() -> None:
    assert client_properties({"properties": PLAIN, "bootstrap.servers": "c:1"})["bootstrap.servers"] == "c:1"


@pytest.mark.parametrize(
    ("text", "single", "expected"),
    [
        (PLAIN, {"sasl.username": "you"}, {"sasl.username": "you"}),
        (PLAIN, {"sasl.password": "other"}, {"sasl.password": "other"}),
        (PLAIN, {"sasl.mechanisms": "SCRAM-SHA-256"}, {"sasl.mechanisms": "SCRAM-SHA-256"}),
        (
            "\n".join(f"{name}={value}" for name, value in LOGIN.items()),
            {"sasl.mechanism": "PLAIN", JAAS: 'x.PlainLoginModule required username="you" password="other";'},
            {"sasl.mechanisms": "PLAIN", "sasl.username": "you", "sasl.password": "other"},
        ),
        # Each says what the other needs to be read.
        (
            PLAIN.replace(".plain.Plain", ".scram.Scram").replace("sasl.mechanism=PLAIN\n", ""),
            {"sasl.mechanism": "SCRAM-SHA-512"},
            {"sasl.mechanisms": "SCRAM-SHA-512"},
        ),
        (
            SCRAM,
            {JAAS: 'x.ScramLoginModule required username="you" password="other";'},
            {"sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "you", "sasl.password": "other"},
        ),
        (
            f"{PLAIN}ssl.truststore.type=PEM\nssl.truststore.location=/a.pem\n",
            {"ssl.truststore.location": "/b.pem"},
            {"ssl.ca.location": "/b.pem"},
        ),
        (
            f"{PLAIN}ssl.truststore.location=/a.jks\nssl.truststore.password=p\n",
            {"ssl.truststore.location": "/b.pem", "ssl.truststore.type": "PEM"},
            {"ssl.ca.location": "/b.pem"},
        ),
        (f"{PLAIN}ssl.ca.location=/a.pem\n", {"ssl.truststore.certificates": "A"}, {"ssl.ca.pem": "A"}),
        (
            f"{PLAIN}ssl.certificate.location=/a.pem\nssl.key.location=/a.pem\n",
            {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "p"},
            {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "p"},
        ),
        (
            f"{PLAIN}ssl.keystore.location=/me.p12\nssl.keystore.password=p\n",
            {"ssl.certificate.location": "/a.pem", "ssl.key.location": "/a.pem"},
            {"ssl.certificate.location": "/a.pem", "ssl.key.location": "/a.pem"},
        ),
    ],
)
def test_a_single_setting_counts_more_than_another_spelling_of_it(
    text: str, single: dict[str, str], expected: dict[str, str]
) -> None:
    assert client_properties({"properties": text, **single}) == LOGIN | {"sasl.mechanisms": "PLAIN"} | expected


def test_a_single_extension_and_client_count_more_than_the_pasted_ones() -> None:
    found = client_properties(
        {
            "properties": OIDC,
            f"{EXTENSION}.identityPoolId": "pool-3",
            "sasl.oauthbearer.client.credentials.client.id": "you",
        }
    )
    extensions = "logicalCluster=lkc-1,identityPoolId=pool-3"
    assert found == TOKEN | {"sasl.oauthbearer.client.id": "you", EXTENSION: extensions}
    assert client_properties({"properties": OIDC, EXTENSION: "pool=9"})[EXTENSION].endswith("pool=9")
    with pytest.raises(InputError, match=r"sasl\.oauthbearer\.method must be oidc"):
        client_properties({"properties": f"{OIDC}sasl.oauthbearer.method=default\n", "sasl.mechanism": "OAUTHBEARER"})


def test_a_token_login_that_only_a_single_jaas_text_names() -> None:
    module = f'{MODULES}.oauthbearer.OAuthBearerLoginModule required clientId="me" clientSecret="{CANARY}";'
    url = {"sasl.oauthbearer.token.endpoint.url": "https://login.example.org/oauth2/token"}
    found = client_properties({**BROKER, "security.protocol": "SASL_SSL", JAAS: module, **url})
    login = ("sasl.mechanisms", "sasl.oauthbearer.method", "sasl.oauthbearer.client.id")
    assert [found[name] for name in login] == ["OAUTHBEARER", "oidc", "me"]


TLS_OF_JAVA = {"ssl.protocol": "TLSv1.3", "ssl.enabled.protocols": "TLSv1.2, TLSv1.3"}


@pytest.mark.parametrize(
    ("more", "java"),
    [
        ({"sasl.login.connect.timeout.ms": "1000"}, {"sasl.login.connect.timeout.ms": "1000"}),
        ({"sasl.login.read.timeout.ms": "1000 "}, {"sasl.login.read.timeout.ms": "1000"}),
        ({"sasl.login.retry.backoff.ms": "100"}, {"sasl.login.retry.backoff.ms": "100"}),
        ({"sasl.login.retry.backoff.max.ms": "10000"}, {"sasl.login.retry.backoff.max.ms": "10000"}),
        ({"sasl.login.refresh.window.factor": "0.8"}, {"sasl.login.refresh.window.factor": "0.8"}),
        ({"sasl.login.refresh.min.period.seconds": "60"}, {"sasl.login.refresh.min.period.seconds": "60"}),
        (TLS_OF_JAVA, TLS_OF_JAVA),
        ({"sasl.kerberos.service.name": "kafka", "sasl.kerberos.kinit.cmd": "/usr/bin/kinit"}, {}),
    ],
)
def test_what_only_java_has_a_setting_for_is_for_java_alone(more: dict[str, str], java: dict[str, str]) -> None:
    properties = client_properties({"properties": OIDC, **more})
    assert for_librdkafka(properties) == TOKEN
    assert to_java(properties) == to_java(TOKEN) | java
    assert client_properties(properties) == properties


def test_kerberos_itself_is_refused_by_its_name() -> None:
    kerberos = {"sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": CANARY}
    assert_refused(LOGIN | kerberos, "sasl.mechanisms", "must be one of PLAIN")


def test_spaces_at_the_end_of_a_line_are_not_of_the_value() -> None:
    """As Java's client reads them. A password of librdkafka's may end with one."""
    assert client_properties({"properties": OIDC.replace("\n", " \n")}) == TOKEN
    padded = PLAIN.replace("\n", "  \n")
    assert client_properties({"properties": padded}) == LOGIN | {"sasl.mechanisms": "PLAIN"}
    assert client_properties({**LOGIN, "sasl.mechanism": "PLAIN ", "sasl.password": "a "})["sasl.password"] == "a "


EXTENSION_TEXT = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1).filter(
    lambda text: text == text.strip()
)


@given(pool=EXTENSION_TEXT, cluster=EXTENSION_TEXT)
@example(pool="a,b", cluster="a\\,=b\\")
def test_any_value_of_an_extension_comes_back_from_the_list(pool: str, cluster: str) -> None:
    named = {f"{EXTENSION}.cluster": cluster, f"{EXTENSION}.pool": pool}
    properties = client_properties({name: value for name, value in TOKEN.items() if name != EXTENSION} | named)
    assert split_extensions(properties[EXTENSION]) == {"cluster": cluster, "pool": pool}
    options = parse_jaas(to_java(properties)[JAAS])[1]
    assert (options["extension_cluster"], options["extension_pool"]) == (cluster, pool)


def test_java_gets_the_claim_and_the_extensions() -> None:
    java = to_java(client_properties({"properties": OIDC}))
    assert java["sasl.oauthbearer.sub.claim.name"] == "client_id"
    assert 'extension_identityPoolId="pool-2" extension_logicalCluster="lkc-1"' in java[JAAS]


def test_what_is_written_for_java_is_read_again() -> None:
    assert client_properties(BROKER | java_security(TOKEN)) == TOKEN


@pytest.mark.parametrize(
    ("module", "mechanism"),
    [
        (f"{MODULES}.plain.PlainLoginModule", "PLAIN"),
        (f"kafkashaded.{MODULES}.plain.PlainLoginModule", "PLAIN"),
        (f"{MODULES}.scram.ScramLoginModule", "SCRAM-SHA-256"),
    ],
)
@pytest.mark.parametrize("quote", ['"', "'"])
def test_login_modules_and_quotes(module: str, mechanism: str, quote: str) -> None:
    text = f"{module} Required\n username={quote}me{quote}  password = {quote}{CANARY}{quote} ;"
    given = {**BROKER, "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, JAAS: text}
    assert client_properties(given) == LOGIN | {"sasl.mechanisms": mechanism}


JAAS_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@given(user=JAAS_TEXT, password=JAAS_TEXT)
def test_any_login_comes_back_from_its_jaas_text(user: str, password: str) -> None:
    login = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN"}
    java = java_security({**login, "sasl.username": user, "sasl.password": password})
    assert parse_jaas(java[JAAS]) == ("PlainLoginModule", {"username": user, "password": password})


GIVEN = {**BROKER, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}


@pytest.mark.parametrize(
    ("properties", "name", "why"),
    [
        ({**GIVEN, JAAS: CANARY}, JAAS, "cannot be read: it must be of the form"),
        ({**GIVEN, JAAS: f'x.PlainLoginModule required username="{CANARY}'}, JAAS, "cannot be read: a quotation"),
        ({**GIVEN, JAAS: f'x.PlainLoginModule required username="{CANARY}"'}, JAAS, "cannot be read: it must be"),
        ({**GIVEN, JAAS: f"x.PlainLoginModule required {CANARY};"}, JAAS, "cannot be read: its option number 1 is"),
        ({**GIVEN, JAAS: f'x.PlainLoginModule required a="b" {CANARY}=;'}, JAAS, "cannot be read: its option number 2"),
        ({**GIVEN, JAAS: f'com.sun.Krb5LoginModule required a="{CANARY}";'}, JAAS, "must name one of PlainLoginModule"),
        (
            {**GIVEN, JAAS: f'x.ScramLoginModule required username="{CANARY}";'},
            JAAS,
            "has a login module that does not",
        ),
        (
            {**GIVEN, JAAS: f'x.PlainLoginModule required serviceName="{CANARY}";'},
            JAAS,
            "has an option, number 1, that cannot be passed on to librdkafka",
        ),
        (
            {**GIVEN, JAAS: f'x.PlainLoginModule required username="me" password="a "{CANARY}="b";'},
            JAAS,
            "has an option, number 3, that cannot be passed on",
        ),
        (
            {**GIVEN, "sasl.username": "other", JAAS: f'x.PlainLoginModule required username="{CANARY}";'},
            JAAS,
            "and sasl.username say different things: keep one",
        ),
        ({**GIVEN, "sasl.mechanisms": "SCRAM-SHA-256"}, "sasl.mechanism", "and sasl.mechanisms say different things"),
        (TOKEN | {f"{EXTENSION}.log-id": CANARY}, f"{EXTENSION}.log-id", "must end with a name of letters only"),
        (TOKEN | {EXTENSION: f"pool={CANARY}\\x"}, EXTENSION, "must be name=value pairs with commas between"),
        (TOKEN | {f"{EXTENSION}.pool": f"{CANARY}\x01"}, f"{EXTENSION}.pool", "must have a value of ASCII characters"),
        (TOKEN | {f"{EXTENSION}.auth": CANARY}, EXTENSION, "may not have one named auth"),
        (
            TOKEN | {f"{EXTENSION}.logicalCluster": CANARY},
            f"{EXTENSION}.logicalCluster",
            f"and {EXTENSION} say different things: keep one",
        ),
        (TOKEN | {f"{EXTENSION}.pool": ""}, f"{EXTENSION}.pool", "must have a value of ASCII characters"),
        (
            TOKEN | {"sasl.login.callback.handler.class": CANARY},
            "sasl.login.callback.handler.class",
            "cannot be passed",
        ),
        (TOKEN | {"ssl.truststore.location": CANARY}, "ssl.truststore.location", "must be a PEM file"),
        (TOKEN | {"ssl.keystore.type": "JKS"}, "ssl.keystore.type", "must be PKCS12 or PEM"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_with_the_name_and_without_the_value(
    properties: dict[str, str], name: str, why: str
) -> None:
    assert_refused(properties, name, why)


def test_a_pasted_line_that_is_no_setting_is_named_by_its_number() -> None:
    with pytest.raises(InputError, match=r"^setting 2 in properties of the connection kafka_default is not") as refused:
        client_properties({"properties": f"a=b\n{CANARY}\n"})
    assert CANARY not in str(refused.value)


def test_stores_that_both_clients_read() -> None:
    tls = {**BROKER, "security.protocol": "SSL"}
    stores = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "/both.pem",
    }
    read = {"ssl.ca.location": "/ca.pem", "ssl.certificate.location": "/both.pem", "ssl.key.location": "/both.pem"}
    assert client_properties(tls | stores) == tls | read
    texts = {"ssl.truststore.certificates": "A", "ssl.keystore.certificate.chain": "B", "ssl.keystore.key": "C"}
    read = {"ssl.ca.pem": "A", "ssl.certificate.pem": "B", "ssl.key.pem": "C"}
    assert client_properties(tls | texts | {"ssl.keystore.type": "PEM"}) == tls | read
    twelve = {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": CANARY}
    assert client_properties(tls | twelve | {"ssl.keystore.type": "PKCS12"}) == tls | twelve
    assert client_properties(tls | {"ssl.endpoint.identification.algorithm": ""}) == tls | {
        "ssl.endpoint.identification.algorithm": "none"
    }
