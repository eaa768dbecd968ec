"""Commands that only read: status, health, metrics, logs, history, tail, topics."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

from typer import Argument, Option

from switchyard.cli.options import Json, number, read_settings
from switchyard.cli.output import Row, format_log, paint, print_json, print_line, print_on_stderr, print_rows, show
from switchyard.errors import InputError

Limit = Annotated[int, number("How many rows.")]
Follow = Annotated[bool, Option("--follow", help="Go on with new rows until Ctrl-C.")]
Name = Annotated[str, Argument(metavar="NAME", help="users_ui, accounts_ui, final_ui, rejects_ui, control_raw, ...")]
Filters = Annotated[list[str] | None, Option("--filter", metavar="C:OP:V", help="column:operator:value, repeatable.")]
Quick = Annotated[str, Option(help="Words that must be in some column of text.", show_default=False)]
SortBy = Annotated[str, Option(help="Columns with commas between; --sort=-balance descends.", show_default=False)]
FOLLOW_SECONDS = 1.0
FOLLOW_ROWS = 1000


def status(as_json: Json = False) -> int:
    """Show the active generation, its lag, rate and health.

    Exit 1 when it is unhealthy.
    """
    from switchyard.health.status_report import describe_status, word_status

    found = describe_status(read_settings())
    show(found if as_json else word_status(found), as_json)
    return 0 if found["healthy"] else 1


def health(as_json: Json = False) -> int:
    """Show every health check; exit 1 when one is not met."""
    from switchyard.health.inputs import run_checks
    from switchyard.local.kafka_settings import find_kafka

    settings = read_settings()
    verdicts = run_checks(settings, find_kafka(settings))
    is_healthy = not any(verdict.is_incident for verdict in verdicts)
    lines = [f"{paint(f'{verdict.level:13}')}  {verdict.check:9}  {verdict.text}" for verdict in verdicts]
    rows = [{"check": verdict.check, "level": verdict.level, "text": verdict.text} for verdict in verdicts]
    show({"healthy": is_healthy, "checks": rows}, as_json, "\n".join(lines))
    return 0 if is_healthy else 1


def metrics(as_json: Json = False) -> None:
    """Print the figures that Prometheus gets, in its text format."""
    from prometheus_client.exposition import generate_latest

    from switchyard.health.metrics_collector import MetricsCollector
    from switchyard.health.read_model import ReadModel

    collector = MetricsCollector(ReadModel(read_settings()))
    if not as_json:
        print(generate_latest(collector).decode(), end="")
        return
    print_json(
        {
            family.samples[0].name: [{"labels": sample.labels, "value": sample.value} for sample in family.samples]
            for family in collector.collect()
        }
    )


def logs(limit: Limit = 200, follow: Follow = False, as_json: Json = False) -> None:
    """Show what happened, in plain words, newest last."""
    _show_newest("orchestrator_logs", limit, follow, as_json, _print_logs)


def _print_logs(rows: list[Row], header: bool) -> None:
    for row in rows:
        print_line(format_log(row))


def history(limit: Limit = 200, as_json: Json = False) -> None:
    """Show every request and what became of it, newest last."""
    _show_newest("swap_history", limit, False, as_json)


def tail(
    name: Name,
    limit: Limit = 20,
    follow: Follow = False,
    filters: Filters = None,
    quick: Quick = "",
    sort: SortBy = "",
    as_json: Json = False,
) -> None:
    """Show the newest rows of a stable name."""
    if not (filters or quick or sort):
        return _show_newest(name, limit, follow, as_json)
    if follow:
        raise InputError("--follow shows new rows as they come: use it without --filter, --quick and --sort")
    # Imported here, because the way above needs none of these.
    from switchyard.tables.live import LiveTables
    from switchyard.tables.queries import parse_query
    from switchyard.tables.reader import Reader
    from switchyard.tables.stable_names import resolve_name

    # What the page shows for the same filters and sort, in its order.
    query = parse_query(resolve_name(name), filters=filters or [], quick=quick, sort=sort, limit=limit)
    rows = Reader(LiveTables(read_settings().layout)).page(name, query).rows
    (print_json if as_json else print_rows)(rows)


def _show_newest(
    name: str, limit: int, follow: bool, as_json: bool, print_new: Callable[[list[Row], bool], None] = print_rows
) -> None:
    from switchyard.tables.stable_names import newest_rows

    if follow and as_json:
        raise InputError("--follow has no end and --json is one document: use one of them")
    layout = read_settings().layout
    looked_at = max(limit, FOLLOW_ROWS) if follow else limit
    rows = newest_rows(layout, name, looked_at, print_on_stderr)
    if as_json:
        print_json(rows)
        return
    print_new(rows[-limit:], True)
    while follow:
        seen = {repr(row) for row in rows}
        time.sleep(FOLLOW_SECONDS)
        rows = newest_rows(layout, name, looked_at)
        print_new([row for row in rows if repr(row) not in seen], False)


def topics(as_json: Json = False) -> None:
    """List the topics that exist, with their partitions."""
    from switchyard.kafka.topics import TopicReader
    from switchyard.local.kafka_settings import find_kafka

    with TopicReader(find_kafka(read_settings())) as reader:
        found = reader.list_joinable()
    if as_json:
        print_json({"topics": found})
    else:
        print_rows([{"topic": name, "partitions": count} for name, count in sorted(found.items())])
