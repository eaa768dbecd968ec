"""A real broker with TLS, every kind of login that Switchyard knows, and access rules; and what clients need for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from switchyard.kafka.client_settings import client_properties
from switchyard.kafka.demo import DemoProducer
from switchyard.kafka.topics import TopicReader, ensure_topics
from switchyard.local import broker_config, loopback
from switchyard.local.broker import Broker
from tests.certificates import DAY, NOW, Authority
from tests.identity_provider import AUDIENCE, ISSUER, IdentityProvider, running_provider

CANARY = "canary-7f3a9c"
# With everything that a quoting could stumble over, on top of what is searched for.
PASSWORD = rf"""{CANARY} "quoted" \n\\ it's=#;,${{x}} ünï"""
# The broker reads this one from a separate file, which knows only Latin letters.
PLAIN_PASSWORD = rf"{CANARY} a=b;c\d"
CLIENT_SECRET = f"{CANARY}~secret/+="
KEY_PASSWORD = f"{CANARY}-key"
ALLOWED = ("users", "accounts")
CONTROL, DESCRIBED, HIDDEN = "control", "described", "hidden"
LISTENERS = ("SASL", "TLS", "OAUTH", "EXPIRED", "STRANGE")
LOGIN = "org.apache.kafka.common.security"
LOGINS = ("PLAIN", "PLAIN by JAAS", "SCRAM-SHA-256", "SCRAM-SHA-512", "SCRAM-SHA-512 by JAAS", "OAUTHBEARER", "SSL")


class SecuredBroker(Broker):
    """The listener without TLS is for the tests' own admin client: nobody else is a super user."""

    def __init__(self, folder: Path, ports: dict[str, int], settings: dict[str, str], keys_url: str) -> None:
        super().__init__(folder, ports["PLAINTEXT"])
        self._ports = ports
        self._settings = settings
        self._keys_url = keys_url

    def command(self) -> list[str]:
        java, *rest = super().command()
        return [java, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._keys_url}", *rest]

    def _write_config(self) -> None:
        super()._write_config()
        controller = broker_config.read_controller_port(self.config)
        assert controller is not None
        own = broker_config.build(self.port, controller, self.data)
        places = {name: f"{name}://{loopback.HOST}:{port}" for name, port in self._ports.items()}
        own["listeners"] = ",".join([*places.values(), f"CONTROLLER://{loopback.HOST}:{controller}"])
        own["advertised.listeners"] = ",".join(places.values())
        self.config.write_text("".join(f"{key}={_escape(value)}\n" for key, value in (own | self._settings).items()))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\")


@dataclass(frozen=True)
class Login:
    """One way to log in: with the right settings, with a wrong secret, and without one."""

    right: dict[str, str]
    wrong: dict[str, str]
    missing: dict[str, str]
    secret: str


@dataclass(frozen=True)
class Secured:
    broker: Broker
    folder: Path
    ports: dict[str, int]
    logins: dict[str, Login]
    provider: IdentityProvider

    @property
    def admin(self) -> dict[str, str]:
        return {"bootstrap.servers": self.broker.bootstrap}

    def at(self, listener: str) -> dict[str, str]:
        return {"bootstrap.servers": f"{loopback.HOST}:{self.ports[listener]}"}


@contextmanager
def running_secured_broker(folder: Path) -> Iterator[Secured]:
    authority, stranger = Authority("test authority"), Authority("somebody else")
    certificates = folder / "certificates"
    server = authority.issue("broker").write(certificates, "broker")
    authority.issue("broker", until=NOW - DAY).write(certificates, "expired")
    stranger.issue("broker").write(certificates, "strange")
    (certificates / "ca.crt").write_text(authority.certificate)
    with running_provider("oidc-client", CLIENT_SECRET, *server) as provider:
        ports = {name: loopback.pick_free_port() for name in ("PLAINTEXT", *LISTENERS)}
        broker = SecuredBroker(folder / "broker", ports, _broker_settings(certificates, provider), provider.keys_url)
        broker.start()
        try:
            broker.wait_until_ready(60)
            secured = Secured(broker, folder, ports, _logins(ports, certificates, authority, provider), provider)
            _prepare(secured)
            yield secured
        finally:
            broker.stop()


def _broker_settings(certificates: Path, provider: IdentityProvider) -> dict[str, str]:
    plain = PLAIN_PASSWORD.replace("\\", "\\\\")
    settings = {
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_SSL,OAUTH:SASL_SSL,TLS:SSL,EXPIRED:SSL,STRANGE:SSL"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl.plain.sasl.jaas.config": f'{LOGIN}.plain.PlainLoginModule required user_plain="{plain}";',
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.sasl.jaas.config": f"{LOGIN}.oauthbearer.OAuthBearerLoginModule required;",
        "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": (
            f"{LOGIN}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        "listener.name.oauth.sasl.oauthbearer.jwks.endpoint.url": provider.keys_url,
        "listener.name.oauth.sasl.oauthbearer.sub.claim.name": "client_id",
        "listener.name.oauth.sasl.oauthbearer.expected.audience": AUDIENCE,
        "listener.name.oauth.sasl.oauthbearer.expected.issuer": ISSUER,
        "listener.name.tls.ssl.client.auth": "required",
    }
    for mechanism in ("scram-sha-256", "scram-sha-512"):
        settings[f"listener.name.sasl.{mechanism}.sasl.jaas.config"] = f"{LOGIN}.scram.ScramLoginModule required;"
    for listener in LISTENERS:
        name = {"EXPIRED": "expired", "STRANGE": "strange"}.get(listener, "broker")
        both = certificates / f"{name}.pem"
        both.write_text((certificates / f"{name}.key").read_text() + (certificates / f"{name}.crt").read_text())
        prefix = f"listener.name.{listener.lower()}.ssl"
        settings |= {
            f"{prefix}.keystore.type": "PEM",
            f"{prefix}.keystore.location": str(both),
            f"{prefix}.truststore.type": "PEM",
            f"{prefix}.truststore.location": str(certificates / "ca.crt"),
        }
    return settings


def _logins(
    ports: dict[str, int], certificates: Path, authority: Authority, provider: IdentityProvider
) -> dict[str, Login]:
    ca = {"ssl.ca.location": str(certificates / "ca.crt")}
    sasl = {"bootstrap.servers": f"{loopback.HOST}:{ports['SASL']}", "security.protocol": "SASL_SSL", **ca}

    def by_password(mechanism: str, user: str, password: str) -> Login:
        named = {**sasl, "sasl.mechanisms": mechanism, "sasl.username": user}
        wrong = {**named, "sasl.password": f"{CANARY}-wrong"}
        return Login({**named, "sasl.password": password}, wrong, named, password)

    def by_jaas(login: Login) -> Login:
        """The same as people have it for Java."""
        return Login(_as_java(login.right), _as_java(login.wrong), _as_java(login.missing), login.secret)

    oidc = {
        **sasl,
        "bootstrap.servers": f"{loopback.HOST}:{ports['OAUTH']}",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.client.id": provider.client_id,
        "sasl.oauthbearer.sub.claim.name": "client_id",
        "sasl.oauthbearer.scope": "kafka.read kafka.write",
        "sasl.oauthbearer.extensions.logicalCluster": "lkc-1",
        "sasl.oauthbearer.extensions.identityPoolId": "pool-2",
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "ssl.endpoint.identification.algorithm": "HTTPS",
        "https.ca.location": str(certificates / "ca.crt"),
    }
    secret = "sasl.oauthbearer.client.secret"
    certificate, key = authority.issue("tls", password=KEY_PASSWORD).write(certificates, "client")
    tls = {"bootstrap.servers": f"{loopback.HOST}:{ports['TLS']}", "security.protocol": "SSL", **ca}
    files = {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
    strange = Authority("nobody").issue("tls")
    return {
        "PLAIN": by_password("PLAIN", "plain", PLAIN_PASSWORD),
        "PLAIN by JAAS": by_jaas(by_password("PLAIN", "plain", PLAIN_PASSWORD)),
        "SCRAM-SHA-512 by JAAS": by_jaas(by_password("SCRAM-SHA-512", "scram", PASSWORD)),
        "SCRAM-SHA-256": by_password("SCRAM-SHA-256", "scram", PASSWORD),
        "SCRAM-SHA-512": by_password("SCRAM-SHA-512", "scram", PASSWORD),
        "OAUTHBEARER": Login({**oidc, secret: CLIENT_SECRET}, {**oidc, secret: f"{CANARY}-wrong"}, oidc, CLIENT_SECRET),
        "SSL": Login(
            {**tls, **files, "ssl.key.password": KEY_PASSWORD},
            {**tls, "ssl.certificate.pem": strange.certificate, "ssl.key.pem": strange.key},
            tls,
            KEY_PASSWORD,
        ),
    }


def _as_java(login: dict[str, str]) -> dict[str, str]:
    given = {name: value for name, value in login.items() if name not in ("sasl.username", "sasl.password")}
    module = "plain.Plain" if given["sasl.mechanisms"] == "PLAIN" else "scram.Scram"
    known = [name for name in ("username", "password") if f"sasl.{name}" in login]
    options = " ".join(f'{name}="{_quote(login[f"sasl.{name}"])}"' for name in known)
    given["sasl.mechanism"] = given.pop("sasl.mechanisms")
    return given | {"sasl.jaas.config": f"{LOGIN}.{module}LoginModule required {options};"}


def _quote(value: str) -> str:
    return _escape(value).replace('"', '\\"')


def _prepare(secured: Secured) -> None:
    ensure_topics(secured.admin, [*ALLOWED, CONTROL, DESCRIBED, HIDDEN], 2)
    admin = AdminClient(secured.admin)
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        credential = UserScramCredentialUpsertion("scram", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        admin.alter_user_scram_credentials([credential])["scram"].result(30)
    principals = ["User:plain", "User:scram", "User:oidc-client", "User:CN=tls"]
    for made in admin.create_acls([rule for name in principals for rule in access_rules(name)]).values():
        made.result(30)


def access_rules(principal: str) -> list[AclBinding]:
    """What docs/security.md says that the Kafka user needs, and a topic that may be seen but not read."""
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    wanted = [
        *[(topic, name, literal, AclOperation.READ) for name in (*ALLOWED, CONTROL)],
        *[(topic, name, literal, AclOperation.WRITE) for name in (*ALLOWED, CONTROL)],
        (group, "switchyard-", prefixed, AclOperation.READ),
        (topic, DESCRIBED, literal, AclOperation.DESCRIBE),
    ]
    return [
        AclBinding(kind, name, pattern, principal, "*", operation, AclPermissionType.ALLOW)
        for kind, name, pattern, operation in wanted
    ]


def as_pasted(login: dict[str, str]) -> str:
    """The properties file that people have for Java: nothing but a backslash is escaped."""
    given = dict(login)
    if location := given.pop("ssl.ca.location", None):
        given |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": location}
    return "# for Java\n\n" + "".join(f"{name}={_escape(value)}\n" for name, value in given.items())


def write_pasted(path: Path, login: dict[str, str]) -> None:
    """Write that text into a file of its owner alone."""
    path.touch(0o600)
    path.write_text(as_pasted(login))


def ask_for_topics(kafka: dict[str, str]) -> object:
    with TopicReader(client_properties(kafka)) as reader:
        return reader.list_topics()


def send_demo(kafka: dict[str, str], seconds: float = 0.1) -> int:
    producer = DemoProducer(kafka, *ALLOWED)
    producer.send_steadily(200, seconds)
    return producer.sent


def find_canary(*places: Path) -> list[str]:
    files = [file for place in places for file in (place.rglob("*") if place.is_dir() else [place])]
    return [str(file) for file in files if file.is_file() and CANARY.encode() in read_if_there(file)]


def read_if_there(file: Path) -> bytes:
    """Of a process that has ended since it was listed there is nothing to read."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
