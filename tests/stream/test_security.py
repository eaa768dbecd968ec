"""Kafka with TLS, logins and access rules for Spark and its drivers: every login, and where a secret shows.

tests/services/test_security.py has the other clients.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from switchyard.drivers.submission import backfill_arguments
from switchyard.errors import AccessError
from switchyard.health.accounting import account_for_records
from switchyard.kafka import clients
from switchyard.kafka.client_settings import client_properties, to_java
from switchyard.kafka.topics import TopicReader
from switchyard.layout import PROJECT, Layout
from switchyard.settings import Settings
from switchyard.stream.query import kafka_options
from switchyard.stream.session import SECRET_OPTIONS, allow_token_url
from switchyard.swap.backfills import BackfillHandler, backfill_id
from switchyard.swap.history import Event
from switchyard.swap.history_store import HistoryStore
from switchyard.tables.status import read_status
from tests.events import draw_events
from tests.secured import (
    ALLOWED,
    CANARY,
    LOGINS,
    Secured,
    ask_for_topics,
    find_canary,
    send_demo,
)
from tests.stream.driver import Driver, running_driver
from tests.topics import Topics
from tests.waiting import eventually

BACKFILL = PROJECT / "jobs" / "backfill_generation.py"
each_login = pytest.mark.parametrize("name", LOGINS)


def count_with_spark(spark: SparkSession, kafka: dict[str, str]) -> int:
    options = kafka_options(to_java(client_properties(kafka)))
    return spark.read.format("kafka").options(**options, subscribe="users").load().count()


@contextmanager
def token_url_allowed(spark: SparkSession, url: str) -> Iterator[None]:
    allow_token_url(spark, url)
    try:
        yield
    finally:
        allow_token_url(spark, "")


@each_login
def test_spark_reads_with_the_same_settings(spark: SparkSession, secured: Secured, name: str) -> None:
    login = secured.logins[name]
    send_demo(secured.admin)
    with token_url_allowed(spark, secured.provider.token_url), TopicReader(secured.admin) as reader:
        first, following = reader.bounds("users")
        assert count_with_spark(spark, login.right) == sum(following.values()) - sum(first.values()) > 0


@pytest.mark.parametrize("name", ["SCRAM-SHA-256", "OAUTHBEARER"])
def test_spark_is_refused_with_a_wrong_secret_and_does_not_repeat_it(
    spark: SparkSession, secured: Secured, name: str
) -> None:
    with token_url_allowed(spark, secured.provider.token_url), pytest.raises(Exception, match=r"(?i)kafka") as refused:
        count_with_spark(spark, secured.logins[name].wrong)
    assert CANARY not in str(refused.value)


def with_scope(secured: Secured, scope: str) -> dict[str, str]:
    """Another scope is another login: Java's clients share those that are alike."""
    return secured.logins["OAUTHBEARER"].right | {"sasl.oauthbearer.scope": scope}


def test_spark_fetches_a_token_from_nowhere_else(spark: SparkSession, secured: Secured) -> None:
    for number, allowed in enumerate(("", "https://login.example.org/token")):
        with token_url_allowed(spark, allowed), pytest.raises(Exception, match=r"(?i)kafka"):
            count_with_spark(spark, with_scope(secured, f"elsewhere {number}"))
    assert [scope for scope in secured.provider.scopes if "elsewhere" in scope] == []


def test_both_clients_ask_for_the_scope(spark: SparkSession, secured: Secured) -> None:
    kafka = with_scope(secured, "api://one/.default two")
    ask_for_topics(kafka)
    assert secured.provider.scopes[-1] == "api://one/.default two"
    with token_url_allowed(spark, secured.provider.token_url):
        count_with_spark(spark, kafka)
    assert secured.provider.scopes[-2:] == ["api://one/.default two"] * 2


JAAS_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(user=JAAS_TEXT, password=JAAS_TEXT)
def test_any_secret_reaches_the_java_client_unharmed(spark: SparkSession, user: str, password: str) -> None:
    jvm = spark.sparkContext._jvm
    login = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN", "sasl.username": user}
    java = to_java(client_properties({"bootstrap.servers": "b:1", **login, "sasl.password": password}))
    config = jvm.java.util.HashMap()
    config.put("sasl.mechanism", "PLAIN")
    config.put("sasl.jaas.config", jvm.org.apache.kafka.common.config.types.Password(java["sasl.jaas.config"]))
    context = jvm.org.apache.kafka.common.security.JaasContext.loadClientContext(config)
    options = context.configurationEntries().get(0).getOptions()
    assert (options.get("username"), options.get("password")) == (user, password)


@each_login
def test_spark_hides_every_secret_option(spark: SparkSession, secured: Secured, name: str) -> None:
    import re

    login = secured.logins[name]
    shown = {key for key in to_java(login.right) if not re.search(SECRET_OPTIONS, key)}
    assert [key for key in shown if CANARY in to_java(login.right)[key]] == []
    assert spark.conf.get("spark.redaction.regex") == SECRET_OPTIONS
    redaction = spark.sparkContext._jvm.org.apache.spark.kafka010.KafkaRedactionUtil
    assert CANARY not in redaction.redactJaasParam(to_java(login.right).get("sasl.jaas.config", ""))


# The driver as a process


@dataclass(frozen=True)
class SecuredTopics(Topics):
    """Filled without a login, read with one."""

    login: dict[str, str]

    @property
    def kafka(self) -> dict[str, str]:
        return self.login


# Everything that the Kafka clients and Spark's Kafka source ever log.
LOUD = """\
status=error
appender.console.type=Console
appender.console.name=console
appender.console.target=SYSTEM_ERR
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1}: %m%n%ex
rootLogger.level=info
rootLogger.appenderRef.console.ref=console
logger.kafka.name=org.apache.kafka
logger.kafka.level=info
logger.source.name=org.apache.spark.sql.kafka010
logger.source.level=debug
logger.provider.name=org.apache.spark.kafka010
logger.provider.level=debug
"""


def processes_of(driver: Driver) -> list[Path]:
    """All processes of the session that spark-submit was started in."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == driver.process.pid:
                found.append(folder)
        except OSError:
            continue
    return found


def test_the_secret_of_a_driver_is_in_its_properties_file_only(
    secured: Secured, layout: Layout, tmp_path: Path
) -> None:
    """With a token, whose client's secret Java wants inside of a text; a password goes the same way."""
    (tmp_path / "log4j2.properties").write_text(LOUD)
    loud = f"loud:{tmp_path / 'log4j2.properties'}"
    login = secured.logins["OAUTHBEARER"]
    topics = SecuredTopics(secured.broker.bootstrap, *ALLOWED, login.right)
    topics.send(draw_events(seed=3, count=50))
    for topic in ALLOWED:
        topics.send_raw(topic, [None])
    chosen = Settings(root=layout.root)
    with running_driver(chosen, topics, tmp_path, crash=loud) as driver:

        def is_active() -> bool:
            assert driver.process.poll() is None, driver.tail()
            return read_status(layout) is not None

        eventually(is_active, 120)
        folders = processes_of(driver)
        assert len(folders) >= 2
        assert find_canary(*[folder / part for folder in folders for part in ("cmdline", "environ")]) == []
        found = account_for_records(chosen, client_properties(login.right))
        assert found.is_clean, found
        assert "tombstones" in found.text, "it was to ask the broker"
        refused = client_properties(login.right | {"sasl.oauthbearer.sub.claim.name": "nobody"})
        with pytest.raises(AccessError, match=clients.NO_CLAIM[:40]):
            account_for_records(chosen, refused)
        driver.ask_to_stop()
        assert driver.wait() == 128 + signal.SIGTERM
    log = driver.log.read_text()
    assert "sasl.mechanism = OAUTHBEARER" in log
    assert "sasl.jaas.config = [hidden]" in log, "the Kafka client was to log its settings"
    assert find_canary(tmp_path) == [str(tmp_path / "kafka.properties")]

    wrong = SecuredTopics(secured.broker.bootstrap, *ALLOWED, secured.logins["SCRAM-SHA-512 by JAAS"].wrong)
    with running_driver(chosen, wrong, tmp_path, crash=loud) as driver:
        assert driver.wait() == 1
    assert clients.LOGIN_REFUSED in driver.tail()
    assert find_canary(tmp_path) == [str(tmp_path / "kafka.properties")]


def test_the_job_of_a_backfill_logs_in(secured: Secured, layout: Layout, tmp_path: Path) -> None:
    login = secured.logins["OAUTHBEARER"].right
    topics = SecuredTopics(secured.broker.bootstrap, *ALLOWED, login)
    topics.send(draw_events(seed=4, count=20))
    chosen = Settings(root=layout.root)
    with TopicReader(client_properties(login)) as reader:
        wanted = {"users_topic": topics.users, "accounts_topic": topics.accounts, "join_type": "left"}
        BackfillHandler(chosen, reader).order(wanted, backfill_id("one"), "test")
    properties = tmp_path / "kafka.properties"
    arguments = backfill_arguments(1, properties)
    with running_driver(chosen, topics, tmp_path, job=BACKFILL, arguments=arguments) as driver:
        assert driver.wait() == 0, driver.tail()
    outcome = HistoryStore(layout).ledger().outcomes[backfill_id("one")]
    assert outcome.event is Event.PLANNED, outcome
    assert find_canary(tmp_path) == [str(properties)]
