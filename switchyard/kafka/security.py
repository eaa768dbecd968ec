"""The security settings of a Kafka client: what they must hold, which are secret, and the same for Spark's Java client.

The names are those of librdkafka, as `translate_settings` has made them. A setting that only one of the two clients
has is refused, as the other client would be less secure than it looks. An error names a setting, never its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from switchyard.kafka.translate_settings import (
    EXTENSIONS,
    JAAS,
    METHOD,
    OIDC,
    is_for_java,
    is_java_number,
    split_extensions,
)
from switchyard.kafka.translate_settings import wrong as _wrong

SECRETS = (
    "sasl.password",
    "sasl.oauthbearer.client.secret",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.keystore.password",
)
SECRET_TEXTS = (JAAS, "properties", "basic.auth.user.info", "schema.registry.basic.auth.user.info")
"""Fields of a connection whose text may contain a secret"""
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_SSL")
PASSWORD_MECHANISMS = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}
OAUTHBEARER = "OAUTHBEARER"
TOKEN_URL = f"{OIDC}.token.endpoint.url"
SUBJECT = f"{OIDC}.sub.claim.name"
_OIDC_NEEDS = (f"{OIDC}.client.id", f"{OIDC}.client.secret", TOKEN_URL)
_SASL = {
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    f"{OIDC}.method",
    f"{OIDC}.scope",
    EXTENSIONS,
    SUBJECT,
    *_OIDC_NEEDS,
    "https.ca.location",
    "https.ca.pem",
}
_TLS = {
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.password",
    METHOD,
}
_FAMILY = re.compile(r"(security|sasl|ssl|https|enable\.(ssl|sasl))\.")
_PAIR = r"[A-Za-z]+=(?:[\t\x20-\x2b\x2d-\x5b\x5d-\x7e]|\\[,\\])*"
_EXTENSIONS = re.compile(f"{_PAIR}(,{_PAIR})*")
# librdkafka sends the scope as it is, Java encodes it for a form: allow what is the same in both.
_SCOPE = re.compile(r"[ !$'-*,-\[\]-~]*")
_CLAIM = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,100}")
_NUMBER = re.compile(r"\d{1,18}(\.\d{1,18})?")
_TLS_VERSION = re.compile(r"TLS(v1\.[23])?")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LOGIN = "org.apache.kafka.common.security"


def is_security(name: str) -> bool:
    return _FAMILY.match(name) is not None


def secret_values(properties: Mapping[str, str]) -> list[str]:
    return [properties[name] for name in SECRETS if properties.get(name)]


def check_security(properties: Mapping[str, str]) -> None:
    """Refuse, in one sentence, what would not work or would not be secure in one of the two clients."""
    protocol = properties.get("security.protocol", "PLAINTEXT")
    if protocol not in PROTOCOLS:
        raise _wrong("security.protocol", f"must be one of {', '.join(PROTOCOLS)}")
    if properties.get("enable.ssl.certificate.verification", "true").lower() != "true":
        raise _wrong("enable.ssl.certificate.verification", "must stay true: Spark's client always verifies")
    _check_java(properties)
    given = {name for name in properties if is_security(name) and not is_for_java(name)} - {"security.protocol"}
    _refuse(given - _SASL - _TLS - {"enable.ssl.certificate.verification"}, "cannot be passed on to both clients")
    if protocol != "SASL_SSL":
        _refuse(given & _SASL, "needs security.protocol to be SASL_SSL")
    if protocol == "PLAINTEXT":
        _refuse(given & _TLS, "needs security.protocol to be SSL or SASL_SSL")
    _check_tls(properties)
    if protocol == "SASL_SSL":
        _check_sasl(properties)


def _check_java(properties: Mapping[str, str]) -> None:
    """Look at what only Java's client gets: it refuses a bad value in the driver alone, long after the start."""
    for name, value in sorted(properties.items()):
        if is_java_number(name):
            if not _NUMBER.fullmatch(value):
                raise _wrong(name, "must be a number")
        elif is_for_java(name) and not all(_TLS_VERSION.fullmatch(version.strip()) for version in value.split(",")):
            raise _wrong(name, "must name TLSv1.2 or TLSv1.3: librdkafka takes no older version")


def _check_tls(properties: Mapping[str, str]) -> None:
    for name in ("ssl.ca", "ssl.certificate", "ssl.key", "https.ca"):
        if f"{name}.location" in properties and f"{name}.pem" in properties:
            raise _wrong(f"{name}.pem", f"and {name}.location exclude each other: keep one")
    has_certificate, has_key = (_has(properties, name) for name in ("ssl.certificate", "ssl.key"))
    if has_certificate != has_key:
        missing, given = ("key", "certificate") if has_certificate else ("certificate", "key")
        raise _wrong(f"ssl.{missing}.location", f"is missing: ssl.{given} is of no use without it")
    if has_key and "ssl.keystore.location" in properties:
        raise _wrong("ssl.keystore.location", "and ssl.key exclude each other: keep one")
    if properties.get(METHOD, "https") not in ("https", "none"):
        raise _wrong(METHOD, "must be https or none")


def _check_sasl(properties: Mapping[str, str]) -> None:
    mechanism = properties.get("sasl.mechanisms", "")
    if mechanism in PASSWORD_MECHANISMS:
        _require(properties, ("sasl.username", "sasl.password"), mechanism)
    elif mechanism == OAUTHBEARER:
        _check_oidc(properties)
    else:
        known = ", ".join((*PASSWORD_MECHANISMS, OAUTHBEARER))
        raise _wrong("sasl.mechanisms", f"must be one of {known} when security.protocol is SASL_SSL")


def _check_oidc(properties: Mapping[str, str]) -> None:
    if properties.get(f"{OIDC}.method", "oidc") != "oidc":
        raise _wrong(f"{OIDC}.method", "must be oidc")
    _require(properties, _OIDC_NEEDS, OAUTHBEARER)
    url = urlsplit(properties[TOKEN_URL])
    is_private = url.scheme == "https" or (url.scheme == "http" and url.hostname in _LOOPBACK)
    if not is_private or not url.hostname or url.username is not None:
        raise _wrong(TOKEN_URL, "must be an https address without a login in it: the client's secret is sent there")
    if not _SCOPE.fullmatch(properties.get(f"{OIDC}.scope", "")):
        raise _wrong(f"{OIDC}.scope", 'may hold neither &, +, %, #, ", \\ nor other than ASCII characters')
    if SUBJECT in properties and not _CLAIM.fullmatch(properties[SUBJECT]):
        raise _wrong(SUBJECT, "must be the name of a claim, without spaces and quotation marks")
    extensions = properties.get(EXTENSIONS, "")
    if extensions and not _EXTENSIONS.fullmatch(extensions):
        raise _wrong(
            EXTENSIONS,
            "must be name=value pairs with commas between, the names of letters only, with a backslash before a comma "
            "or a backslash of a value",
        )
    if "auth" in split_extensions(extensions):
        raise _wrong(EXTENSIONS, "may not have one named auth: Kafka keeps that name for the token")


def _require(properties: Mapping[str, str], names: Iterable[str], mechanism: str) -> None:
    for name in names:
        if not properties.get(name):
            raise _wrong(name, f"is missing: {mechanism} needs it")


def _refuse(names: set[str], why: str) -> None:
    for name in sorted(names):
        raise _wrong(name, f"{why}; remove it, or see docs/security.md")


def _has(properties: Mapping[str, str], name: str) -> bool:
    return f"{name}.location" in properties or f"{name}.pem" in properties


def java_security(properties: Mapping[str, str]) -> dict[str, str]:
    """The same under the names of the Java client, which wants a certificate and its key as text, not as two files."""
    protocol = properties.get("security.protocol", "PLAINTEXT")
    java = {"security.protocol": protocol}
    if protocol != "PLAINTEXT":
        java |= _java_trust(properties, "ssl.ca") | _java_identity(properties)
        algorithm = properties.get(METHOD, "https")
        java[METHOD] = "" if algorithm == "none" else algorithm
        java |= {name: value for name, value in properties.items() if is_for_java(name) and name.startswith("ssl.")}
    if protocol == "SASL_SSL":
        java |= {name: value for name, value in properties.items() if is_java_number(name)}
        java |= _java_login(properties)
    return java


def _java_trust(properties: Mapping[str, str], name: str) -> dict[str, str]:
    """Without such a setting, librdkafka trusts what the machine trusts, and Java what the JVM does."""
    if pem := properties.get(f"{name}.pem"):
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem}
    location = properties.get(f"{name}.location", "probe")
    if location == "probe":
        return {}
    if Path(location).is_dir():
        raise _wrong(f"{name}.location", "must be one file with PEM certificates, not a folder")
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": location}


def _java_identity(properties: Mapping[str, str]) -> dict[str, str]:
    if location := properties.get("ssl.keystore.location"):
        password = properties.get("ssl.keystore.password", "")
        store = {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": location, "ssl.keystore.password": password}
        return store | {"ssl.key.password": password}
    if not _has(properties, "ssl.key"):
        return {}
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": _read_pem(properties, "ssl.certificate"),
        "ssl.keystore.key": _unlock(_read_pem(properties, "ssl.key"), properties.get("ssl.key.password", "")),
    }


def _unlock(key: str, password: str) -> str:
    """The key in the one form that every Java reads. Java 17 cannot open what OpenSSL encrypts today (PBES2)."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        opened = serialization.load_pem_private_key(key.encode(), password.encode() or None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _wrong("ssl.key.location", "holds no PEM key that ssl.key.password opens: check both") from None
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return opened.private_bytes(serialization.Encoding.PEM, form, plain).decode()


def _read_pem(properties: Mapping[str, str], name: str) -> str:
    if pem := properties.get(f"{name}.pem"):
        return pem
    try:
        return Path(properties[f"{name}.location"]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(f"{name}.location", f"cannot be read ({type(error).__name__}): check the path") from None


def _java_login(properties: Mapping[str, str]) -> dict[str, str]:
    mechanism = properties["sasl.mechanisms"]
    if mechanism != OAUTHBEARER:
        options = {name: properties[f"sasl.{name}"] for name in ("username", "password")}
        return {"sasl.mechanism": mechanism, "sasl.jaas.config": _jaas(PASSWORD_MECHANISMS[mechanism], options)}
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": _jaas("oauthbearer.OAuthBearerLoginModule", _oidc_options(properties)),
        "sasl.login.callback.handler.class": f"{_LOGIN}.oauthbearer.OAuthBearerLoginCallbackHandler",
        TOKEN_URL: properties[TOKEN_URL],
    } | {name: properties[name] for name in (SUBJECT,) if name in properties}


def _oidc_options(properties: Mapping[str, str]) -> dict[str, str]:
    # An empty password first, as Spark hides what follows the word password when it logs this text, and nothing else.
    options = {"clientId": properties[f"{OIDC}.client.id"], "password": ""}
    options["clientSecret"] = properties[f"{OIDC}.client.secret"]
    if scope := properties.get(f"{OIDC}.scope"):
        options["scope"] = scope
    for name, value in split_extensions(properties.get(EXTENSIONS, "")).items():
        options[f"extension_{name}"] = value
    return options | _java_trust(properties, "https.ca")


def _jaas(module: str, options: Mapping[str, str]) -> str:
    given = " ".join(f"{name}={_quote(value)}" for name, value in options.items())
    return f"{_LOGIN}.{module} required {given};"


def _quote(text: str) -> str:
    """Quote as Java's tokenizer reads it, for which a line break would end the quotation."""
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return f'"{text}"'
