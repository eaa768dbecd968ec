"""The names of Kafka settings: those of the Java client and of librdkafka become those of librdkafka.

Each client has settings that the other does not know or spells differently. `normalise` gives each the name and the
form of value that `security` checks and translates. Pure. An error names a setting, never its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from switchyard.errors import InputError

OIDC = "sasl.oauthbearer"
EXTENSIONS = f"{OIDC}.extensions"
JAAS = "sasl.jaas.config"
METHOD = "ssl.endpoint.identification.algorithm"
HANDLER = "sasl.login.callback.handler.class"

_OTHER_NAMES = {
    "sasl.mechanism": "sasl.mechanisms",
    f"{OIDC}.client.credentials.client.id": f"{OIDC}.client.id",
    f"{OIDC}.client.credentials.client.secret": f"{OIDC}.client.secret",
    "metadata.broker.list": "bootstrap.servers",
    "max.request.size": "message.max.bytes",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
_JAVA_NAMES = {
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
}
_OTHER_NAMES |= {java: name for name, java in _JAVA_NAMES.items()}
ASSIGNMENT = "partition.assignment.strategy"
_JAVA_ONLY = frozenset(
    {
        "auto.include.jmx.reporter",
        "buffer.memory",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "default.api.timeout.ms",
        "exclude.internal.topics",
        "max.block.ms",
        "max.poll.records",
        "metadata.max.idle.ms",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "partitioner.ignore.keys",
        "socket.connection.setup.timeout.max.ms",
    }
)
"""Tuning that librdkafka has no setting for"""
_JAVA_NUMBER = re.compile(r"sasl\.login\.((connect|read)\.timeout|retry\.backoff(\.max)?|refresh\.[a-z]+)(\.[a-z]+)*")
_JAVA_TLS = ("ssl.protocol", "ssl.enabled.protocols")
"""Security settings that librdkafka has none for, and that make neither client less secure"""
# Settings for serializers, a schema registry or classes inside of a client, as people paste them from their other
# applications. Spark and our clients read bytes and use none of these. Nor do they use Kerberos.
_NOT_OURS = re.compile(
    r"(key|value)\.(de)?serializer|schema\.registry\..+|(basic|bearer)\.auth\..+|(key|value)\.subject\.name\.strategy"
    r"|interceptor\.classes|confluent\.monitoring\..+|metric\.reporters|partitioner\.class"
    r"|auto\.register\.schemas|use\.latest\.version|specific\.avro\.reader|sasl\.kerberos\..+"
)
_EXTENSION = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\t\x20-\x7e]+")
_SPECIAL = re.compile(r"[,\\]")
_LISTED_EXTENSION = re.compile(r"(?:[^,\\]|\\.)+", re.DOTALL)
_MECHANISM_OF_MODULE = {"PlainLoginModule": "PLAIN", "ScramLoginModule": None, "OAuthBearerLoginModule": "OAUTHBEARER"}
_JAAS_NAMES = {
    "username": "sasl.username",
    "password": "sasl.password",
    "clientId": f"{OIDC}.client.id",
    "clientSecret": f"{OIDC}.client.secret",
    "scope": f"{OIDC}.scope",
}
# Java trims every value. A login of librdkafka may end with a space, which Java's login modules keep too.
_TRIMMED = frozenset(
    {
        "bootstrap.servers",
        f"{OIDC}.client.id",
        f"{OIDC}.client.secret",
        f"{OIDC}.scope",
        EXTENSIONS,
        f"{OIDC}.token.endpoint.url",
        f"{OIDC}.sub.claim.name",
        HANDLER,
    }
)
# What one of the two texts says about the other, for the pasted text and the single settings beside it.
_SHARED = (("sasl.mechanisms", "sasl.mechanism"), ("ssl.truststore.type",), ("ssl.keystore.type",))
_FILE_OR_TEXT = ("ssl.ca", "https.ca", "ssl.certificate", "ssl.key")
_TOKEN = re.compile(r"""\s*(?:"((?:[^"\\\n\r]|\\.)*)"|'((?:[^'\\\n\r]|\\.)*)'|([^\s"'=;]+)|([=;]))""")
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_MEANING = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "b": "\b", "a": "\a", "v": "\v"}


class JaasError(ValueError):
    """Say what is wrong with a JAAS text, without quoting it: it holds the password."""


def normalise(properties: Mapping[str, str]) -> dict[str, str]:
    known = {name: value for name, value in properties.items() if not _NOT_OURS.fullmatch(name)}
    for other, name in _OTHER_NAMES.items():
        _rename(known, other, name)
    for name in known:
        if name in _TRIMMED or is_for_java(name):
            known[name] = known[name].strip(" \r\n")
    for name in ("security.protocol", "sasl.mechanisms"):
        if name in known:
            known[name] = known[name].strip().upper()
    if METHOD in known:
        # Java says it with an empty text.
        known[METHOD] = known[METHOD].strip().lower() or "none"
    _take_tuning(known)
    _take_login(known)
    _take_extensions(known)
    _take_stores(known)
    if known.get("sasl.mechanisms") == "OAUTHBEARER":
        known.setdefault(f"{OIDC}.method", "oidc")
        known[f"{OIDC}.method"] = known[f"{OIDC}.method"].strip().lower()
    return known


def merge(pasted: Mapping[str, str], single: Mapping[str, str]) -> dict[str, str]:
    """Normalise both; a single setting wins over the same setting in the pasted text, however each is spelled."""
    # The password of a pasted store is not that of another store.
    given = {*single, "ssl.truststore.password"} if "ssl.truststore.location" in single else single
    pasted = {name: value for name, value in pasted.items() if name not in given}
    below, above = normalise(_share(single, pasted)), normalise(_share(pasted, single))
    if f"{OIDC}.method" in below and f"{OIDC}.method" not in single:
        # Only the default, which must not hide the pasted one.
        above.pop(f"{OIDC}.method", None)
    if EXTENSIONS in below and EXTENSIONS in above:
        above[EXTENSIONS] = _join_extensions(split_extensions(below[EXTENSIONS]) | split_extensions(above[EXTENSIONS]))
    replaced = {other for name in above for other in _alternatives(name)}
    return {name: value for name, value in below.items() if name not in replaced} | above


def _share(others: Mapping[str, str], properties: Mapping[str, str]) -> dict[str, str]:
    """Add what decides how to read a JAAS text or a store, if only the other settings say it."""
    shared: dict[str, str] = {}
    for spellings in _SHARED:
        if not any(name in properties for name in spellings):
            shared |= {name: others[name] for name in spellings if name in others}
    return shared | dict(properties)


def _alternatives(name: str) -> list[str]:
    """Settings that say in another way what this one says: as a text, or in a PKCS#12 file."""
    identity = [f"{part}.{kind}" for part in ("ssl.certificate", "ssl.key") for kind in ("location", "pem")]
    if name == "ssl.keystore.location":
        return identity
    part, _, kind = name.rpartition(".")
    if part not in _FILE_OR_TEXT or kind not in ("location", "pem"):
        return []
    stores = ["ssl.keystore.location", "ssl.keystore.password"] if name in identity else []
    return [f"{part}.{'pem' if kind == 'location' else 'location'}", *stores]


def for_librdkafka(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Without what only Java's client knows."""
    known = {name: value for name, value in properties.items() if name not in _JAVA_ONLY and not is_for_java(name)}
    if is_java_class(known.get(ASSIGNMENT, "")):
        del known[ASSIGNMENT]
    return known


def rename_for_java(properties: Mapping[str, str]) -> dict[str, str]:
    """The tuning under Java's names, without what only librdkafka can read."""
    known = {_JAVA_NAMES.get(name, name): value for name, value in properties.items()}
    if not is_java_class(known.get(ASSIGNMENT, "")):
        known.pop(ASSIGNMENT, None)
    return known


def is_for_java(name: str) -> bool:
    """Whether it is a security setting that only Java's client gets."""
    return name in _JAVA_TLS or is_java_number(name)


def is_java_number(name: str) -> bool:
    return _JAVA_NUMBER.fullmatch(name) is not None


def is_java_class(strategy: str) -> bool:
    """Java names its assignors by class, librdkafka by a word."""
    return "." in strategy


def _take_tuning(known: dict[str, str]) -> None:
    """Drop values that mean the default in one client and are refused by the other."""
    if known.get("client.dns.lookup", "").strip() == "default":
        del known["client.dns.lookup"]
    for name in ("socket.receive.buffer.bytes", "socket.send.buffer.bytes"):
        if known.get(name, "").strip() in ("-1", "0"):
            del known[name]


def _rename(known: dict[str, str], other: str, name: str) -> None:
    if other not in known:
        return
    value = known.pop(other)
    if known.setdefault(name, value) != value:
        raise wrong(other, f"and {name} say different things: keep one")


def _take_login(known: dict[str, str]) -> None:
    """Take apart what Java writes as one text: the login module and its options."""
    if known.get(HANDLER, "").endswith(".OAuthBearerLoginCallbackHandler"):
        del known[HANDLER]
    if JAAS not in known:
        return
    try:
        module, options = parse_jaas(known.pop(JAAS))
    except JaasError as error:
        raise wrong(JAAS, f"cannot be read: {error}") from None
    if module not in _MECHANISM_OF_MODULE:
        raise wrong(JAAS, f"must name one of {', '.join(_MECHANISM_OF_MODULE)}")
    if mechanism := _MECHANISM_OF_MODULE[module]:
        known.setdefault("sasl.mechanisms", mechanism)
    fits = {"PlainLoginModule": ("PLAIN",), "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512")}
    if known.get("sasl.mechanisms") not in fits.get(module, ("OAUTHBEARER",)):
        raise wrong(JAAS, "has a login module that does not fit sasl.mechanism: change one of them")
    for number, (option, value) in enumerate(options.items(), 1):
        name = _JAAS_NAMES.get(option)
        if option.startswith("extension_"):
            name = f"{EXTENSIONS}.{option.removeprefix('extension_')}"
        elif option.startswith("ssl."):
            name = _https_name(option, options)
        if name is None:
            # Not its name: of a password that is not quoted well, a part reads like one.
            raise wrong(
                JAAS,
                f"has an option, number {number}, that cannot be passed on to librdkafka: remove it, or "
                "put quotation marks around what belongs together",
            )
        if name and value and known.setdefault(name, value) != value:
            raise wrong(JAAS, f"and {name} say different things: keep one")


def _https_name(option: str, options: Mapping[str, str]) -> str | None:
    """Options for the certificate of the token endpoint; PEM only. Empty where the option says nothing new."""
    if options.get("ssl.truststore.type", "").upper() != "PEM":
        return None
    names = {"ssl.truststore.location": "https.ca.location", "ssl.truststore.certificates": "https.ca.pem"}
    return "" if option == "ssl.truststore.type" else names.get(option)


def _take_extensions(known: dict[str, str]) -> None:
    """`extensions.<name>` for each of them becomes one list, as librdkafka wants it."""
    pairs = [known[EXTENSIONS]] if known.get(EXTENSIONS) else []
    listed = split_extensions(known.get(EXTENSIONS, ""))
    for name in sorted(name for name in known if name.startswith(f"{EXTENSIONS}.")):
        key, value = name.removeprefix(f"{EXTENSIONS}."), known.pop(name).strip()
        if not _EXTENSION.fullmatch(key):
            raise wrong(name, "must end with a name of letters only")
        if not _EXTENSION_VALUE.fullmatch(value):
            raise wrong(name, "must have a value of ASCII characters")
        if listed.get(key, value) != value:
            raise wrong(name, f"and {EXTENSIONS} say different things: keep one")
        if key not in listed:
            pairs.append(_join_extensions({key: value}))
    if pairs:
        known[EXTENSIONS] = ",".join(pairs)


def split_extensions(text: str) -> dict[str, str]:
    """Read librdkafka's list, in which a backslash stands before a comma or a backslash of a value."""
    pairs = (re.sub(r"\\(.)", r"\1", found[0], flags=re.DOTALL) for found in _LISTED_EXTENSION.finditer(text))
    return {pair.partition("=")[0]: pair.partition("=")[2] for pair in pairs}


def _join_extensions(extensions: Mapping[str, str]) -> str:
    return ",".join(name + "=" + _SPECIAL.sub(r"\\\g<0>", value) for name, value in extensions.items())


def _take_stores(known: dict[str, str]) -> None:
    """Java's stores of certificates, where librdkafka can read them: PEM, and PKCS#12 for a client's own."""
    kind = known.pop("ssl.truststore.type", "").strip().upper()
    if "ssl.truststore.location" in known:
        if kind != "PEM":
            raise wrong(
                "ssl.truststore.location",
                "must be a PEM file, with ssl.truststore.type=PEM: librdkafka reads no other; "
                "`keytool -list -rfc -keystore FILE` writes one",
            )
        _rename(known, "ssl.truststore.location", "ssl.ca.location")
        known.pop("ssl.truststore.password", None)
    kind = known.pop("ssl.keystore.type", "PKCS12").strip().upper()
    if kind == "PEM":
        if location := known.pop("ssl.keystore.location", None):
            known |= {"ssl.certificate.location": location, "ssl.key.location": location}
        known.pop("ssl.keystore.password", None)
    elif kind != "PKCS12":
        raise wrong(
            "ssl.keystore.type",
            "must be PKCS12 or PEM: librdkafka reads no other; "
            "`keytool -importkeystore -deststoretype PKCS12` makes one of yours",
        )


def parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """The short name of the login module and its options, as Java's own parser reads them."""
    tokens = list(_tokens(text))
    if len(tokens) < 3 or tokens[-1] != (";", False) or tokens[1][0].lower() not in ("required", "requisite"):
        raise JaasError('it must be of the form `<LoginModule> required name="value" …;`')
    options: dict[str, str] = {}
    middle = tokens[2:-1]
    for place in range(0, len(middle), 3):
        name, equals, value = [*middle[place : place + 3], *[("", False)] * 3][:3]
        if equals != ("=", False) or name[0] in ("", "=", ";") or value in (("", False), ("=", False), (";", False)):
            raise JaasError(f'its option number {place // 3 + 1} is not of the form name="value"')
        options[name[0]] = value[0]
    return tokens[0][0].rpartition(".")[2], options


def _tokens(text: str) -> Iterator[tuple[str, bool]]:
    """Each with whether it was quoted."""
    place, end = 0, len(text.rstrip())
    while place < end:
        found = _TOKEN.match(text, place)
        if found is None:
            raise JaasError("a quotation in it does not end")
        place = found.end()
        quoted = next((part for part in found.groups()[:2] if part is not None), None)
        yield (found[3] or found[4], False) if quoted is None else (_unescape(quoted), True)


def _unescape(text: str) -> str:
    def meaning(found: re.Match[str]) -> str:
        return chr(int(found[1], 8)) if found[1][0] in "01234567" else _MEANING.get(found[1], found[1])

    return _ESCAPE.sub(meaning, text)


def wrong(name: str, why: str) -> InputError:
    return InputError(f"the Kafka setting {name} {why} (connection kafka_default)")
