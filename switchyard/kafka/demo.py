"""The demo producer: realistic users and accounts that belong together, at a steady rate or as fast as possible.

People come and go: each has a short life of events and then leaves for good, so that the rows of every join grow with
the events, not with their square.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice

from confluent_kafka import KafkaError, Producer

from switchyard.deadline import Deadline
from switchyard.errors import SwitchyardError
from switchyard.kafka.client_settings import for_producers
from switchyard.kafka.clients import ErrorListener, open_client
from switchyard.kafka.topics import TopicReader, base_properties
from switchyard.records import LEFT, RIGHT, Side

RATE = 20.0
"""Records a second, both topics together, unless the caller asks for another rate."""
FIRST_NAMES = ("Ada", "Alan", "Barbara", "Donald", "Edsger", "Frances", "Grace", "Hedy", "John", "Katherine", "Ken")
LAST_NAMES = ("Allen", "Hopper", "Johnson", "Lamarr", "Liskov", "Lovelace", "Neumann", "Shannon", "Turing", "Wirth")
ACCOUNT_TYPES = ("basic", "silver", "gold", "platinum")
CURRENT_PEOPLE = 300
"""At the default rate a person has an event every 15 seconds, and stays for about a minute."""
LIVES = ("U", "UU", "UAUA", "UUAA", "AUUA", "UAUAU", "UUUAA", "AUAUU", "UAUUAA")
"""The lives that a person can have: U is a user event, A an account event. The left join of a whole life has 1 to 1.5
rows for each event. Two lives have no account, in some the first account comes late, in others before the user."""
PIECE = 10_000
_REPORT_SECONDS = 5.0


@dataclass(frozen=True)
class DemoRecord:
    side: Side
    fields: dict[str, object]


def draw_records(draw: random.Random, first: int = 0) -> Iterator[DemoRecord]:
    """Yields without end the next event of one of the current people, drawn at random.

    When a person has left, a new one with the next number, counted from `first`, has their first event instead. So
    there are never more people than records, and no number comes twice.
    """
    numbers = count(first)
    people: list[Iterator[DemoRecord]] = [iter(()) for _ in range(CURRENT_PEOPLE)]
    while True:
        place = draw.randrange(CURRENT_PEOPLE)
        record = next(people[place], None)
        if record is None:
            people[place] = draw_life(next(numbers), draw)
            record = next(people[place])
        yield record


def draw_life(number: int, draw: random.Random) -> Iterator[DemoRecord]:
    """All events of one person, who takes another last name or gets older from one user event to the next."""
    first, last, age = draw.choice(FIRST_NAMES), draw.choice(LAST_NAMES), draw.randint(18, 90)
    for kind in draw.choice(LIVES):
        if kind == "A":
            balance = round(draw.lognormvariate(7, 1.5), 2)
            yield DemoRecord(RIGHT, describe(RIGHT, number, draw.choice(ACCOUNT_TYPES), balance))
            continue
        email = f"{first}.{last}.{number}@example.org".lower()
        yield DemoRecord(LEFT, describe(LEFT, number, f"{first} {last}", email, age))
        if draw.random() < 0.5:
            last = draw.choice(LAST_NAMES)
        else:
            age += 1


def describe(side: Side, number: int, *values: object) -> dict[str, object]:
    """A person's record: the key, and the values in the order of the fields."""
    return {side.key: f"user-{number}", **dict(zip(side.values, values, strict=True))}


class DemoProducer:
    """Sends the records of one generator to two topics.

    Without a seed, the first person's number is the count of records that the topics ever had. A run makes no more
    people than records, so ids do not come back when the demo is started again, whatever its rate was. Only two that
    run at the same time may use an id twice.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        users_topic: str,
        accounts_topic: str,
        *,
        report: Callable[[int, float], None] | None = None,
        seed: int | None = None,
    ) -> None:
        first = count_records(properties, [users_topic, accounts_topic]) if seed is None else 0
        self._records = draw_records(random.Random(seed), first)
        self._topics = {LEFT: users_topic, RIGHT: accounts_topic}
        self._listener = ErrorListener(properties)
        settings = for_producers(base_properties(properties)) | {"linger.ms": "20"}
        self._producer = open_client(Producer, settings, self._listener)
        self._failures: list[str] = []
        self._report = report
        self._began, self._next_report = time.monotonic(), Deadline(_REPORT_SECONDS)
        self.sent = 0

    def send_steadily(self, rate: float, seconds: float | None) -> None:
        """Send `rate` records a second until the time is over; None: until stopped."""
        while seconds is None or self._seconds < seconds:
            self.send(max(0, int(self._seconds * rate) - self.sent))
            time.sleep(min(0.05, 1 / rate))
        self.flush()

    def send_fast(self, records: int) -> None:
        """Send so many records as fast as the broker takes them: what the demo makes in hours, within seconds."""
        while self.sent < records:
            self.send(min(PIECE, records - self.sent))
        self.flush()

    def send(self, records: int) -> None:
        """Hands the next records to the client, which holds a bounded number that the broker has not taken yet."""
        for record in islice(self._records, records):
            self._send(self._topics[record.side], json.dumps(record.fields).encode())
        self.sent += records
        self._producer.poll(0)
        self._listener.raise_access_error()
        self._check()
        if self._report and self._next_report.restart_if_passed(_REPORT_SECONDS):
            self._report(self.sent, self._seconds)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def flush(self) -> None:
        if self._producer.flush(30):
            raise SwitchyardError("the broker did not take all records within 30 s; is it up?")
        self._check()

    def _send(self, topic: str, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(topic, value, on_delivery=self._note)
                return
            except BufferError:
                self._producer.poll(0.1)

    def _note(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self._failures.append(self._listener.hide(error.str()))

    def _check(self) -> None:
        if self._failures:
            reason = f"a record could not be sent: {self._failures[0]}"
            raise SwitchyardError(f"{reason}; see the topic and the broker, then start again")


def count_records(properties: Mapping[str, str], topics: Iterable[str]) -> int:
    """Counts all records that the topics ever had, deleted ones too. A topic that does not exist has none."""
    with TopicReader(properties) as reader:
        existing = reader.list_topics()
        return sum(sum(reader.bounds(topic)[1].values()) for topic in topics if topic in existing)
