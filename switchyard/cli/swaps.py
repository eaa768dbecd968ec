"""Commands that change what is active: swap, plan, rollback, retire, backfill."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from typer import Argument, Option

from switchyard.cli.options import Json, number, parse_count, parse_rate, read_settings
from switchyard.cli.output import PrintLine, Row, choose_print, print_on_stderr, progress, show
from switchyard.errors import InputError


def parse_deadline(text: str) -> float:
    from switchyard.swap.control_message import MOST_DEADLINE_SECONDS

    return parse_rate(text, MOST_DEADLINE_SECONDS)


Topic = Annotated[str | None, Option(help="Default: the one that is read now.")]
Join = Annotated[str | None, Option(help="left, inner, natural or asof. Default: the one that is used now.")]
Start = Annotated[str | None, Option(help="latest (default), earliest, resume or an ISO timestamp.")]
WITHIN = "The swap fails if it has not flipped after so many seconds. Default: what its records need."
DeadlineSeconds = Annotated[float | None, number(WITHIN, parse_deadline)]
Id = Annotated[str | None, Option(help="Idempotency key: the same id again is the same command.")]
Wait = Annotated[bool, Option("--wait", help="Follow it to its outcome; exit 3 if it failed, 4 if superseded.")]
Replaced = Annotated[int, Argument(parser=parse_count, metavar="N", help="Its number, as `status` shows it.")]
First = Annotated[str | None, Option("--from", help="earliest (default), an ISO timestamp, or offsets as JSON.")]
Last = Annotated[str | None, Option("--to", help="latest (default: now), an ISO timestamp, or offsets as JSON.")]
Publish = Annotated[bool, Option("--publish", help="Make the finished snapshot the active generation.")]
Snapshot = Annotated[int | None, number("Publish this finished snapshot; write no other.")]
# Every other outcome is a success.
EXIT_CODES = {"REJECTED": 2, "FAILED": 3, "SUPERSEDED": 4}


def swap(
    users_topic: Topic = None,
    accounts_topic: Topic = None,
    join_type: Join = None,
    start: Start = None,
    deadline_seconds: DeadlineSeconds = None,
    id: Id = None,
    wait: Wait = False,
    as_json: Json = False,
) -> int:
    """Send a control message: join other topics, or in another way."""
    from switchyard.local.swap_client import follow, send_swap

    settings = read_settings()
    swap_id = send_swap(settings, _name_fields(users_topic, accounts_topic, join_type, start, deadline_seconds), id)
    return _conclude(swap_id, wait, as_json, partial(follow, settings, swap_id))


def plan(
    users_topic: Topic = None,
    accounts_topic: Topic = None,
    join_type: Join = None,
    start: Start = None,
    deadline_seconds: DeadlineSeconds = None,
    as_json: Json = False,
) -> None:
    """Say what a swap would do; change nothing."""
    from switchyard.local.swap_client import make_dry_run

    fields = _name_fields(users_topic, accounts_topic, join_type, start, deadline_seconds)
    answer = make_dry_run(read_settings(), fields)
    if answer.plan is None:
        raise InputError(answer.outcome.detail if answer.outcome else "the plan was refused")
    show(answer.document() if as_json else answer.document()["plan"], as_json)


def _name_fields(*values: str | float | None) -> Row:
    """Return the fields of a control message; what is left out stays as it is."""
    names = ("usersTopic", "accountsTopic", "joinType", "start", "deadlineSeconds")
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def rollback(id: Id = None, wait: Wait = False, as_json: Json = False) -> int:
    """Go back to the previous generation."""
    from switchyard.local.swap_client import follow, send_rollback

    settings = read_settings()
    swap_id = send_rollback(settings, id, print_on_stderr)
    return _conclude(swap_id, wait, as_json, partial(follow, settings, swap_id))


def retire(generation: Replaced, as_json: Json = False) -> None:
    """End a replaced generation that still runs, before its time."""
    from switchyard.local.swap_client import retire

    retire(read_settings(), generation)
    text = f"generation {generation} has retired; its driver ends within seconds"
    show({"generation": generation, "retired": True}, as_json, text)


def backfill(
    users_topic: Topic = None,
    accounts_topic: Topic = None,
    join_type: Join = None,
    first: First = None,
    end: Last = None,
    publish: Publish = False,
    generation: Snapshot = None,
    wait: Wait = False,
    as_json: Json = False,
) -> int:
    """Write the join of a range of history; publish it if wanted."""
    from switchyard.local.swap_client import follow_backfill, send_backfill
    from switchyard.swap.backfills import backfill_id, publish_id

    settings = read_settings()
    given: Row = {"users_topic": users_topic, "accounts_topic": accounts_topic, "join_type": join_type, "from": first}
    given |= {"to": end, "publish": publish, "generation": generation}
    fields = {name: value for name, value in given.items() if value is not None}
    run_id = send_backfill(settings, fields)
    swap_id = publish_id(run_id) if generation else backfill_id(run_id)
    return _conclude(swap_id, wait, as_json, partial(follow_backfill, settings, run_id, fields))


def _conclude(swap_id: str, wait: bool, as_json: bool, follow: Callable[[PrintLine], Row]) -> int:
    """Say what was sent or, with --wait, follow it to its outcome."""
    if not wait:
        text = f"sent as {swap_id}; `switchyard history` and `switchyard logs` tell what becomes of it"
        show({"swapId": swap_id}, as_json, text)
        return 0
    with progress("waiting for the outcome", as_json):
        outcome = follow(choose_print(as_json))
    show(outcome, as_json, ": ".join(filter(None, (outcome["outcome"], outcome["detail"]))))
    return EXIT_CODES.get(outcome["outcome"], 0)
