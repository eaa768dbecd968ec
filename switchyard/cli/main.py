"""The command line: a thin face of the library. It parses, calls, prints, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from switchyard import __version__
from switchyard.errors import InputError, SwitchyardError
from switchyard.settings import Settings, load_settings
from switchyard.swap.control import MOST_DEADLINE_SECONDS

Command = Callable[[Settings, argparse.Namespace], int]
Row = dict[str, Any]
FOLLOW_SECONDS = 1.0
FOLLOW_ROWS = 1000
_OUR_ERROR = re.compile(r" ERROR switchyard\.\w+ (.+)")
"""A line of a job's own log: Spark writes more ERRORs into the same file."""
# Every other outcome is a success.
EXIT_CODES = {"REJECTED": 2, "FAILED": 3, "SUPERSEDED": 4}


def main(arguments: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
    try:
        return run(load_settings(), options)
    except SwitchyardError as error:
        return fail(error, options.json)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def run(settings: Settings, options: argparse.Namespace) -> int:
    """Of an error that nobody foresaw one sentence is shown; the stack is in a log, as its text may quote values."""
    command: Command = options.command
    try:
        return command(settings, options)
    except (SwitchyardError, BrokenPipeError):
        raise
    except Exception as error:
        from switchyard.local.unforeseen import explain_unforeseen

        raise explain_unforeseen(settings.workspace, error) from None


def fail(error: SwitchyardError, as_json: bool) -> int:
    if as_json:
        print_json({"error": str(error)})
    print(f"switchyard: {error}", file=sys.stderr)
    return error.exit_code


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="switchyard",
        description="A live join of two Kafka topics in a Delta table, changed while it runs.",
    )
    parser.add_argument("--version", action="version", version=f"switchyard {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    up = _add(
        commands,
        "up",
        run_up,
        "start the broker, Airflow and the demo producer; with a broker of your own only Airflow",
    )
    up.add_argument("--detach", action="store_true", help="return when all is ready instead of staying")
    up.add_argument(
        "--demo",
        action=argparse.BooleanOptionalAction,
        help="start the demo producer, which writes into the users and accounts topics "
        "(default: only with the embedded broker)",
    )
    _add(commands, "down", run_down, "stop everything that `up` started")
    _add(
        commands,
        "status",
        run_status,
        "the active generation, its lag, rate and health; exit 1 when unhealthy",
    )
    _add(commands, "health", run_health, "every health check with its verdict; exit 1 when one is not met")
    _add(commands, "metrics", run_metrics, "the figures that Prometheus gets, in its text format")
    swap = _add(commands, "swap", run_swap, "send a control message: join other topics, or in another way")
    _add_target(swap)
    swap.add_argument("--id", help="idempotency key: the same id again is the same command")
    swap.add_argument("--wait", action="store_true", help="follow it to its outcome; exit 3 failed, 4 superseded")
    plan = _add(commands, "plan", run_plan, "what a swap would do; changes nothing")
    _add_target(plan)
    rollback = _add(commands, "rollback", run_rollback, "go back to the previous generation")
    rollback.add_argument("--id", help="idempotency key: the same id again is the same command")
    rollback.add_argument("--wait", action="store_true", help="follow it to its outcome; exit 3 failed, 4 superseded")
    retire = _add(commands, "retire", run_retire, "end a replaced generation that still runs, before its time")
    retire.add_argument("generation", metavar="N", type=_count, help="its number, as `status` shows it")
    backfill = _add(commands, "backfill", run_backfill, "build the join of a range of history; publish it if wanted")
    _add_pair(backfill)
    backfill.add_argument("--from", help="earliest (default), an ISO timestamp, or offsets as JSON")
    backfill.add_argument("--to", help="latest (default: the end now), an ISO timestamp, or offsets as JSON")
    backfill.add_argument("--publish", action="store_true", help="make the finished snapshot the active generation")
    backfill.add_argument("--generation", type=_count, help="publish this finished snapshot; build nothing")
    backfill.add_argument("--wait", action="store_true", help="follow it to its outcome; exit 3 failed, 4 superseded")
    logs = _add(commands, "logs", run_logs, "what happened, in plain words, newest last")
    logs.add_argument("--limit", type=_count, default=200, help="how many lines (default 200)")
    logs.add_argument("--follow", action="store_true", help="go on with new lines until Ctrl-C")
    history = _add(commands, "history", run_history, "every request and what became of it, newest last")
    history.add_argument("--limit", type=_count, default=200, help="how many events (default 200)")
    tail = _add(commands, "tail", run_tail, "the newest rows of a stable name")
    tail.add_argument("name", metavar="NAME", help="users_ui, accounts_ui, final_ui, rejects_ui, control_raw, ...")
    tail.add_argument("--limit", type=_count, default=20, help="how many rows (default 20)")
    tail.add_argument("--follow", action="store_true", help="go on with new rows until Ctrl-C")
    tail.add_argument("--filter", action="append", default=[], help="column:operator:value, may be repeated")
    tail.add_argument("--quick", default="", help="words that must be in some column of text")
    tail.add_argument("--sort", default="", help="columns with commas between; --sort=-balance is descending")
    _add(commands, "topics", run_topics, "the topics that exist, with their partitions")
    audit = _add(
        commands,
        "audit",
        run_audit,
        "recompute the join at a fixed version and compare; exit 1 if it differs",
    )
    audit.add_argument("--generation", type=_count, help="which generation (default: the active one)")
    forget = _add(
        commands, "forget", run_forget, "remove a person from every table; exit 1 when something is still pending"
    )
    forget.add_argument("--user-id", required=True, help="the userId; - reads it from the standard input")
    forget.add_argument("--dry-run", action="store_true", help="only count the rows; changes nothing")
    maintain = _add(commands, "maintain", run_maintain, "compact, vacuum and clean up, while the stream goes on")
    maintain.add_argument("--dry-run", action="store_true", help="only say what would be done")
    maintain.add_argument("--retention-hours", type=_rate, help="default: the setting vacuum_retention_hours")
    demo = _add(commands, "demo", run_demo, "produce realistic users and accounts that belong together")
    demo.add_argument("--rate", type=_rate, help="records a second, both topics together (default 20)")
    demo.add_argument("--seconds", type=_rate, help="for how long (default: until Ctrl-C)")
    demo.add_argument("--records", type=_number, help="send so many as fast as the broker takes them, then end")
    demo.add_argument("--users-topic", help="default: the setting users_topic")
    demo.add_argument("--accounts-topic", help="default: the setting accounts_topic")
    _add(commands, "doctor", run_doctor, "check Java, ports, broker, tables, connections; say how to mend them")
    return parser


def _add(commands: Any, name: str, command: Command, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(command=command)
    return parser


def _add_target(parser: argparse.ArgumentParser) -> None:
    """What a control message may say; what is left out stays as it is."""
    _add_pair(parser)
    parser.add_argument("--start", help="latest (default), earliest, resume or an ISO timestamp")
    parser.add_argument(
        "--deadline-seconds",
        type=_seconds,
        help="the swap fails if it has not flipped after so many seconds (default: what its records need)",
    )


def _add_pair(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--users-topic", help="default: the one that is read now")
    parser.add_argument("--accounts-topic", help="default: the one that is read now")
    parser.add_argument("--join-type", help="left, inner, natural or asof (default: the one that is used now)")


def _count(text: str, most: int = 1_000_000) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {most}")
    return number


def _number(text: str) -> int:
    return _count(text, most=1_000_000_000)


def _rate(text: str, most: int = 1_000_000) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to {most}")
    return number


def _seconds(text: str) -> float:
    return _rate(text, MOST_DEADLINE_SECONDS)


def run_up(settings: Settings, options: argparse.Namespace) -> int:
    from switchyard.local.up import up

    tell = _tell_on_stderr if options.json else _tell
    up(settings, detach=options.detach, demo=options.demo, tell=tell)
    if options.json:
        from switchyard.health.status_report import describe_status

        print_json(describe_status(settings) if options.detach else {"stopped": True})
    return 0


def run_down(settings: Settings, options: argparse.Namespace) -> int:
    from switchyard.local.up import down

    down(settings, tell=_tell_on_stderr if options.json else _tell)
    if options.json:
        print_json({"stopped": True})
    return 0


def run_status(settings: Settings, options: argparse.Namespace) -> int:
    from switchyard.health.status_report import describe_status, word_status

    status = describe_status(settings)
    if options.json:
        print_json(status)
    else:
        print_pairs(word_status(status))
    return 0 if status["healthy"] else 1


def run_health(settings: Settings, options: argparse.Namespace) -> int:
    from switchyard.health.inputs import run_checks
    from switchyard.local.kafka_settings import find_kafka

    verdicts = run_checks(settings, find_kafka(settings))
    if options.json:
        rows = [{"check": verdict.check, "level": verdict.level, "text": verdict.text} for verdict in verdicts]
        print_json({"healthy": not any(verdict.is_incident for verdict in verdicts), "checks": rows})
    else:
        for verdict in verdicts:
            print(f"{verdict.level:13}  {verdict.check:9}  {verdict.text}")
    return 1 if any(verdict.is_incident for verdict in verdicts) else 0


def run_metrics(settings: Settings, options: argparse.Namespace) -> int:
    from prometheus_client.exposition import generate_latest

    from switchyard.health.metrics_collector import MetricsCollector
    from switchyard.health.read_model import ReadModel

    collector = MetricsCollector(ReadModel(settings))
    if options.json:
        print_json(
            {
                family.samples[0].name: [{"labels": sample.labels, "value": sample.value} for sample in family.samples]
                for family in collector.collect()
            }
        )
    else:
        print(generate_latest(collector).decode(), end="")
    return 0


def run_swap(settings: Settings, options: argparse.Namespace) -> int:
    from switchyard.local.swap_client import send_swap

    return _follow_if_wanted(settings, options, send_swap(settings, _message_fields(options), options.id))


def run_rollback(settings: Settings, options: argparse.Namespace) -> int:
    from switchyard.local.swap_client import send_rollback

    return _follow_if_wanted(settings, options, send_rollback(settings, options.id, _tell_on_stderr))


def run_retire(settings: Settings, options: argparse.Namespace) -> int:
    from switchyard.local.swap_client import retire

    retire(settings, options.generation)
    if options.json:
        print_json({"generation": options.generation, "retired": True})
    else:
        print(f"generation {options.generation} has retired; its driver ends within seconds")
    return 0


def run_plan(settings: Settings, options: argparse.Namespace) -> int:
    from switchyard.local.swap_client import make_dry_run

    answer = make_dry_run(settings, _message_fields(options))
    if answer.plan is None:
        raise InputError(answer.outcome.detail if answer.outcome else "the plan was refused")
    if options.json:
        print_json(answer.document())
    else:
        print_pairs(answer.document()["plan"])
    return 0


def _message_fields(options: argparse.Namespace) -> Row:
    fields = {
        "usersTopic": options.users_topic,
        "accountsTopic": options.accounts_topic,
        "joinType": options.join_type,
        "start": options.start,
        "deadlineSeconds": options.deadline_seconds,
    }
    return {name: value for name, value in fields.items() if value is not None}


def run_backfill(settings: Settings, options: argparse.Namespace) -> int:
    from switchyard.local.swap_client import follow_backfill, send_backfill
    from switchyard.swap.backfills import backfill_id, publish_id

    given = {
        "users_topic": options.users_topic,
        "accounts_topic": options.accounts_topic,
        "join_type": options.join_type,
        "from": getattr(options, "from"),
        "to": options.to,
        "publish": options.publish,
        "generation": options.generation,
    }
    fields = {name: value for name, value in given.items() if value is not None}
    run_id = send_backfill(settings, fields)
    if options.wait:
        tell = _tell_on_stderr if options.json else _tell
        return _show_outcome(options, follow_backfill(settings, run_id, fields, tell))
    return _show_sent(options, publish_id(run_id) if options.generation else backfill_id(run_id))


def _follow_if_wanted(settings: Settings, options: argparse.Namespace, swap_id: str) -> int:
    from switchyard.local.swap_client import follow

    if not options.wait:
        return _show_sent(options, swap_id)
    return _show_outcome(options, follow(settings, swap_id, _tell_on_stderr if options.json else _tell))


def _show_sent(options: argparse.Namespace, swap_id: str) -> int:
    if options.json:
        print_json({"swapId": swap_id})
    else:
        print(f"sent as {swap_id}; `switchyard history` and `switchyard logs` tell what becomes of it")
    return 0


def _show_outcome(options: argparse.Namespace, outcome: Row) -> int:
    if options.json:
        print_json(outcome)
    else:
        print(f"{outcome['outcome']}: {outcome['detail']}" if outcome["detail"] else outcome["outcome"])
    return EXIT_CODES.get(outcome["outcome"], 0)


def run_logs(settings: Settings, options: argparse.Namespace) -> int:
    return _show_newest(settings, "orchestrator_logs", options, format_log)


def run_history(settings: Settings, options: argparse.Namespace) -> int:
    options.follow = False
    return _show_newest(settings, "swap_history", options, None)


def run_topics(settings: Settings, options: argparse.Namespace) -> int:
    from switchyard.kafka.topics import TopicReader
    from switchyard.local.kafka_settings import find_kafka

    with TopicReader(find_kafka(settings)) as reader:
        topics = reader.list_joinable()
    if options.json:
        print_json({"topics": topics})
    else:
        print_rows([{"topic": name, "partitions": count} for name, count in sorted(topics.items())], None)
    return 0


def run_tail(settings: Settings, options: argparse.Namespace) -> int:
    if options.filter or options.quick or options.sort:
        return _show_page(settings, options)
    return _show_newest(settings, options.name, options, None)


def _show_page(settings: Settings, options: argparse.Namespace) -> int:
    """What the page shows for the same filters and sort, in its order."""
    from switchyard.tables.live import LiveTables
    from switchyard.tables.queries import parse_query
    from switchyard.tables.reader import Reader
    from switchyard.tables.stable_names import resolve_name

    if options.follow:
        raise InputError("--follow shows new rows as they come: use it without --filter, --quick and --sort")
    asked = {"filters": options.filter, "quick": options.quick, "sort": options.sort, "limit": options.limit}
    page = Reader(LiveTables(settings.layout)).page(options.name, parse_query(resolve_name(options.name), **asked))
    if options.json:
        print_json(page.rows)
    else:
        print_rows(page.rows, None)
    return 0


def _show_newest(settings: Settings, name: str, options: argparse.Namespace, line: Callable[[Row], str] | None) -> int:
    from switchyard.tables.stable_names import newest_rows

    if options.follow and options.json:
        raise InputError("--follow has no end and --json is one document: use one of them")
    looked_at = max(options.limit, FOLLOW_ROWS) if options.follow else options.limit
    rows = newest_rows(settings.layout, name, looked_at, _tell_on_stderr)
    if options.json:
        print_json(rows)
        return 0
    print_rows(rows[-options.limit :], line)
    seen = {repr(row) for row in rows}
    while options.follow:
        time.sleep(FOLLOW_SECONDS)
        rows = newest_rows(settings.layout, name, looked_at)
        fresh = [row for row in rows if repr(row) not in seen]
        print_rows(fresh, line, header=False)
        seen = {repr(row) for row in rows}
    return 0


def run_audit(settings: Settings, options: argparse.Namespace) -> int:
    _tell_on_stderr("auditing with Spark; this takes half a minute or more")
    wanted = ["--generation", str(options.generation)] if options.generation else []
    code, result = _run_job(settings, "audit_generation.py", wanted, "audit")
    if options.json:
        print_json(result)
    else:
        print_pairs(result)
    return code


def run_maintain(settings: Settings, options: argparse.Namespace) -> int:
    from switchyard.upkeep.maintenance import COMPACT, ORDER, STEPS, describe, report, start_round

    asked = start_round(settings, options.retention_hours, options.dry_run)
    results = {}
    for step in ORDER:
        _tell_on_stderr(f"{step} ...")
        results[step] = _compact(settings, asked.dry_run) if step == COMPACT else STEPS[step](settings, asked)
    summary = report(settings, results, asked.dry_run)
    if options.json:
        print_json(summary)
    else:
        print(describe(summary, asked.dry_run))
    return 0


def _compact(settings: Settings, dry_run: bool) -> Row:
    return _run_job(settings, "maintain_tables.py", ["--dry-run", str(dry_run).lower()], "compaction")[1]


def _run_job(settings: Settings, job: str, arguments: list[str], name: str) -> tuple[int, Row]:
    """The exit code and the result of a Spark job; its output is in a log of its own."""
    from switchyard.drivers.jobs import run_job

    log = settings.workspace.process_logs / f"{name}.log"
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        code = run_job(settings, job, [*arguments, "--output", str(output)], log)
        if not output.exists():
            kind = InputError if code == InputError.exit_code else SwitchyardError
            raise kind(f"the {name} could not be made: {_last_error(log)} (all of it in {log})")
        return code, dict(json.loads(output.read_text()))


def _last_error(log: Path) -> str:
    with log.open(errors="replace") as lines:
        last = deque((found[1] for line in lines if (found := _OUR_ERROR.search(line))), maxlen=1)
    return last[0] if last else "it was killed or could not start"


def run_forget(settings: Settings, options: argparse.Namespace) -> int:
    from switchyard.kafka.topics import TopicReader
    from switchyard.local.kafka_settings import find_kafka
    from switchyard.local.swap_client import requester
    from switchyard.upkeep.forget import count_rows, forget_user

    user_id = sys.stdin.readline().rstrip("\r\n") if options.user_id == "-" else options.user_id
    if options.dry_run:
        outcome = count_rows(settings.layout, user_id, _tell_on_stderr)
    else:
        with TopicReader(find_kafka(settings)) as reader:
            outcome = forget_user(settings, reader, user_id, requester(), _tell_on_stderr)
    document = outcome.document()
    if options.json:
        print_json(document)
        return 0 if outcome.is_done else 1
    print_pairs(document["found"])
    if not options.dry_run:
        print("\nWhat remains, and when it goes:")
        for remainder in document["remains"]:
            print(f"  {remainder['where']}: {remainder['what']}; it goes {remainder['goes']}")
    return 0 if outcome.is_done else 1


def run_demo(settings: Settings, options: argparse.Namespace) -> int:
    from switchyard.kafka.demo import RATE, produce_demo, produce_records
    from switchyard.kafka.topics import TopicReader
    from switchyard.local.kafka_settings import find_kafka

    if options.records and (options.rate or options.seconds):
        raise InputError("--records has no pace: use it without --rate and --seconds")
    kafka = find_kafka(settings)
    topics: dict[str, Any] = {
        "users_topic": options.users_topic or settings.users_topic,
        "accounts_topic": options.accounts_topic or settings.accounts_topic,
    }

    with TopicReader(kafka) as reader:
        for topic in topics.values():
            reader.partitions(topic)

    def tell(count: int, elapsed: float) -> None:
        _tell_on_stderr(f"{count} records in {elapsed:.0f} s")

    if options.records:
        sent = produce_records(kafka, **topics, records=options.records, tell=tell)
    else:
        sent = produce_demo(kafka, **topics, rate=options.rate or RATE, seconds=options.seconds, tell=tell)
    if options.json:
        print_json({"sent": sent})
    else:
        print(f"sent {sent} records")
    return 0


def run_doctor(settings: Settings, options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from switchyard.local.doctor import examine

    findings = []
    for finding in examine(settings):
        findings.append(finding)
        if not options.json:
            print(f"{'ok  ' if finding.ok else 'FAIL'} {finding.check:13} {finding.finding}")
            if not finding.ok and finding.remedy:
                print(f"     {'':13} → {finding.remedy}")
    ok = all(finding.ok for finding in findings)
    if options.json:
        print_json({"ok": ok, "checks": [asdict(finding) for finding in findings]})
    return 0 if ok else 1


def _tell(line: str) -> None:
    print(line, flush=True)


def _tell_on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def print_json(document: Any) -> None:
    print(json.dumps(document, default=_plain, ensure_ascii=False))


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def print_pairs(document: Row) -> None:
    width = max(map(len, document))
    for name, value in document.items():
        print(f"{name:{width}}  {format_value(value)}")


def print_rows(rows: Iterable[Row], line: Callable[[Row], str] | None, header: bool = True) -> None:
    rows = list(rows)
    if line is not None:
        for row in rows:
            print(line(row), flush=True)
        return
    if not rows:
        if header:
            print("(no rows)")
        return
    cells = [[format_value(value) for value in row.values()] for row in rows]
    table = [list(rows[0]), *cells] if header else cells
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row_cells in table:
        print(
            "  ".join(f"{cell:{width}}" for cell, width in zip(row_cells, widths, strict=True)).rstrip(),
            flush=True,
        )


def format_log(row: Row) -> str:
    generation = f"g{row['generation']}" if row["generation"] is not None else "-"
    swap = f"  [{row['swapId']}]" if row["swapId"] else ""
    return f"{format_value(row['ts'])}  {row['level']:7}  {generation:4}  {row['msg']}{swap}"


def format_value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} {format_value(item)}" for name, item in value.items()) or "-"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
