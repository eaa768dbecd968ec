"""Random but reproducible users and accounts that meet each other, out of order and in bursts."""

from __future__ import annotations

import random
import time
from typing import Any

# An hour ago: the broker deletes records that are older than a topic's retention.
FIRST_MS = int(time.time() - 3600) * 1000


def draw_events(seed: int, count: int, people: int = 40) -> list[tuple[str, int, int, dict[str, Any]]]:
    """(side, partition, timestamp in ms, fields): timestamps mostly rise, with ties and late ones among them."""
    draw = random.Random(seed)
    events = []
    for number in range(count):
        user_id = f"person-{draw.randrange(people)}"
        ts_ms = FIRST_MS + number // 3 * 10 - draw.choice([0, 0, 0, draw.randrange(2000)])
        side = draw.choice(["user", "account"])
        if side == "user":
            fields = {
                "userId": user_id,
                "name": f"n{number}",
                "email": f"{user_id}@example.org",
                "age": number % 90,
            }
        else:
            fields = {"userId": user_id, "accountType": draw.choice(["gold", "basic"]), "balance": number / 4}
        events.append((side, draw.randrange(2), ts_ms, fields))
    return events
