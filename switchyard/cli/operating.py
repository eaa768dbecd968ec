"""Commands that operate an installation: up, down, doctor, demo; audit, maintain, forget."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import deque
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Option

from switchyard.cli.options import Json, number, parse_count, parse_rate, read_settings
from switchyard.cli.output import Row, choose_print, paint, print_json, print_on_stderr, progress, show
from switchyard.errors import InputError, SwitchyardError

parse_records = partial(parse_count, most=1_000_000_000)
Detach = Annotated[bool, Option("--detach", help="Return when all is ready instead of staying.")]
WITH_DEMO = "Start the demo producer, which writes into both topics. Default: only with the embedded broker."
Demo = Annotated[bool | None, Option("--demo/--no-demo", help=WITH_DEMO)]
Rate = Annotated[float | None, number("Records a second, both topics together. Default: 20.", parse_rate, "R")]
Seconds = Annotated[float | None, number("For how long. Default: until Ctrl-C.", parse_rate, "S")]
Records = Annotated[int | None, number("Send so many as fast as the broker takes them, then end.", parse_records)]
Users = Annotated[str | None, Option(help="Default: the setting users_topic.")]
Accounts = Annotated[str | None, Option(help="Default: the setting accounts_topic.")]
Generation = Annotated[int | None, number("Which generation. Default: the active one.")]
DryRun = Annotated[bool, Option("--dry-run", help="Only say what would be done; change nothing.")]
Hours = Annotated[float | None, number("Default: the setting vacuum_retention_hours.", parse_rate, "H")]
UserId = Annotated[str, Option(help="The userId; - reads it from the standard input.", show_default=False)]
# Spark writes more ERRORs into the same file.
_OUR_ERROR = re.compile(r" ERROR switchyard\.\w+ (.+)")


def up(detach: Detach = False, demo: Demo = None, as_json: Json = False) -> None:
    """Start the broker, Airflow and the demo producer.

    With a broker of your own, start only Airflow.
    """
    from switchyard.local.up import up

    settings = read_settings()
    up(settings, detach, demo, choose_print(as_json))
    if as_json:
        from switchyard.health.status_report import describe_status

        print_json(describe_status(settings) if detach else {"stopped": True})


def down(as_json: Json = False) -> None:
    """Stop everything that `up` started."""
    from switchyard.local.up import down

    down(read_settings(), choose_print(as_json))
    if as_json:
        print_json({"stopped": True})


def doctor(as_json: Json = False) -> int:
    """Check Java, ports, broker, tables, connections; say what to do."""
    from switchyard.local.doctor import examine

    findings = []
    for finding in examine(read_settings()):
        findings.append(finding)
        if not as_json:
            print(f"{paint('ok  ' if finding.ok else 'FAIL')} {finding.check:13} {finding.finding}")
            if not finding.ok and finding.remedy:
                print(f"     {'':13} → {finding.remedy}")
    ok = all(finding.ok for finding in findings)
    if as_json:
        print_json({"ok": ok, "checks": [asdict(finding) for finding in findings]})
    return 0 if ok else 1


def demo(
    rate: Rate = None,
    seconds: Seconds = None,
    records: Records = None,
    users_topic: Users = None,
    accounts_topic: Accounts = None,
    as_json: Json = False,
) -> None:
    """Produce realistic users and accounts that belong together."""
    from switchyard.kafka.demo import RATE, DemoProducer
    from switchyard.kafka.topics import TopicReader
    from switchyard.local.kafka_settings import find_kafka

    if records and (rate or seconds):
        raise InputError("--records has no pace: use it without --rate and --seconds")
    settings = read_settings()
    kafka = find_kafka(settings)
    users, accounts = users_topic or settings.users_topic, accounts_topic or settings.accounts_topic
    with TopicReader(kafka) as reader:
        for topic in (users, accounts):
            reader.partitions(topic)

    def report(count: int, elapsed: float) -> None:
        print_on_stderr(f"{count} records in {elapsed:.0f} s")

    producer = DemoProducer(kafka, users, accounts, report=report)
    if records:
        producer.send_fast(records)
    else:
        producer.send_steadily(rate or RATE, seconds)
    show({"sent": producer.sent}, as_json, f"sent {producer.sent} records")


def audit(generation: Generation = None, as_json: Json = False) -> int:
    """Recompute the join at a fixed version; exit 1 if it differs."""
    print_on_stderr("auditing with Spark; this takes half a minute or more")
    wanted = ["--generation", str(generation)] if generation else []
    with progress("auditing", as_json):
        code, result = _run_job("audit_generation.py", wanted, "audit")
    show(result, as_json)
    return code


def maintain(dry_run: DryRun = False, retention_hours: Hours = None, as_json: Json = False) -> None:
    """Compact, vacuum and clean up, while the stream goes on."""
    from switchyard.upkeep.maintenance import COMPACT, ORDER, STEPS, describe, report, start_round

    settings = read_settings()
    asked = start_round(settings, retention_hours, dry_run)
    results = {}
    for step in ORDER:
        print_on_stderr(f"{step} ...")
        with progress(step, as_json):
            if step == COMPACT:
                job = ["--dry-run", str(dry_run).lower()]
                results[step] = _run_job("maintain_tables.py", job, "compaction")[1]
            else:
                results[step] = STEPS[step](settings, asked)
    summary = report(settings, results, dry_run)
    show(summary, as_json, describe(summary, dry_run))


def _run_job(job: str, arguments: list[str], name: str) -> tuple[int, Row]:
    """Return the exit code and the result of a Spark job, whose output goes to a log."""
    from switchyard.drivers.jobs import run_job

    settings = read_settings()
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


def forget(user_id: UserId, dry_run: DryRun = False, as_json: Json = False) -> int:
    """Remove a person from every table; exit 1 if some is pending."""
    from switchyard.kafka.topics import TopicReader
    from switchyard.local.kafka_settings import find_kafka
    from switchyard.local.swap_client import requester
    from switchyard.upkeep.forget import count_rows, forget_user

    settings = read_settings()
    user_id = sys.stdin.readline().rstrip("\r\n") if user_id == "-" else user_id
    if dry_run:
        outcome = count_rows(settings.layout, user_id, print_on_stderr)
    else:
        with TopicReader(find_kafka(settings)) as reader:
            outcome = forget_user(settings, reader, user_id, requester(), print_on_stderr)
    document = outcome.document()
    show(document if as_json else document["found"], as_json)
    if not as_json and not dry_run:
        print("\nWhat remains, and when it goes:")
        for remainder in document["remains"]:
            print(f"  {remainder['where']}: {remainder['what']}; it goes {remainder['goes']}")
    return 0 if outcome.is_done else 1
