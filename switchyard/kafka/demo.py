"""The demo producer: realistic users and accounts that belong together, at a steady rate."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from confluent_kafka import Producer

from switchyard.errors import SwitchyardError
from switchyard.kafka.client import for_producers
from switchyard.kafka.opening import Hearing, open_client
from switchyard.kafka.topics import base_properties

FIRST_NAMES = (
    "Ada",
    "Alan",
    "Barbara",
    "Donald",
    "Edsger",
    "Frances",
    "Grace",
    "Hedy",
    "John",
    "Katherine",
    "Ken",
)
LAST_NAMES = (
    "Allen",
    "Hopper",
    "Johnson",
    "Lamarr",
    "Liskov",
    "Lovelace",
    "Neumann",
    "Shannon",
    "Turing",
    "Wirth",
)
ACCOUNT_TYPES = ("basic", "silver", "gold", "platinum")
PEOPLE = 2_000


@dataclass(frozen=True)
class DemoRecord:
    is_user: bool
    fields: dict[str, object]


def draw_records(draw: random.Random) -> Iterator[DemoRecord]:
    """Without end: people appear, most of them open accounts, some never do, and both change now and then."""
    while True:
        number = min(int(draw.expovariate(3 / PEOPLE)), PEOPLE - 1)
        if draw.random() < 0.4:
            yield DemoRecord(True, draw_user(number, draw))
        elif number % 7:
            yield DemoRecord(False, draw_account(number, draw))


def draw_user(number: int, draw: random.Random) -> dict[str, object]:
    first, last = FIRST_NAMES[number % len(FIRST_NAMES)], LAST_NAMES[number // 7 % len(LAST_NAMES)]
    email = f"{first}.{last}.{number}@example.org".lower()
    return {
        "userId": f"user-{number}",
        "name": f"{first} {last}",
        "email": email,
        "age": draw.randint(18, 90),
    }


def draw_account(number: int, draw: random.Random) -> dict[str, object]:
    balance = round(draw.lognormvariate(7, 1.5), 2)
    return {"userId": f"user-{number}", "accountType": draw.choice(ACCOUNT_TYPES), "balance": balance}


def produce_demo(
    properties: Mapping[str, str],
    *,
    users_topic: str,
    accounts_topic: str,
    rate: float,
    seconds: float | None,
    tell: Callable[[int, float], None],
    seed: int | None = None,
) -> int:
    """Sends `rate` records a second until the time is over (None: until stopped); returns how many."""
    hearing = Hearing(properties)
    producer = open_client(Producer, for_producers(base_properties(properties)) | {"linger.ms": "20"}, hearing)
    failures: list[str] = []
    records = draw_records(random.Random(seed))
    began = told = time.monotonic()
    sent = 0
    while seconds is None or time.monotonic() - began < seconds:
        due = int((time.monotonic() - began) * rate) - sent
        for record in islice(records, max(0, due)):
            topic = users_topic if record.is_user else accounts_topic
            _send(producer, topic, record, failures)
            sent += 1
        producer.poll(0)
        hearing.raise_trouble()
        _check(failures)
        if time.monotonic() - told > 5:
            told = time.monotonic()
            tell(sent, told - began)
        time.sleep(min(0.05, 1 / rate))
    if producer.flush(30):
        raise SwitchyardError("the broker did not take all records within 30 s; is it up?")
    _check(failures)
    return sent


def _check(failures: list[str]) -> None:
    if failures:
        raise SwitchyardError(f"a record could not be sent: {failures[0]}")


def _send(producer: Producer, topic: str, record: DemoRecord, failures: list[str]) -> None:
    value = json.dumps(record.fields).encode()

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    while True:
        try:
            producer.produce(topic, value, on_delivery=on_delivery)
            return
        except BufferError:
            producer.poll(0.1)
