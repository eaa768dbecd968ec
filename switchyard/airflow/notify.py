"""Report incidents to people: in the log, and by the connection `switchyard_alerts`, if there is one.

| type of the connection | goes to |
|---|---|
| `slackwebhook` | a Slack incoming webhook; the secret part of its address is the password |
| `http` | any webhook, as JSON; the password, if there is one, is sent as a bearer token |
| `smtp` | e-mail, by the provider's notifier; `to` and `from_email` in the extra field |
"""

from __future__ import annotations

import html
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, BaseNotifier, Context
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException, AirflowRuntimeError

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from switchyard.health.incidents import Incident

ALERT_CONNECTION = "switchyard_alerts"
TIMEOUT_SECONDS = 10.0


class IncidentNotifier(BaseNotifier):
    """Send one message for all incidents that have begun or ended since the last report."""

    def __init__(self, incidents: Sequence[Incident]) -> None:
        super().__init__()
        self.incidents = list(incidents)

    def notify(self, context: Context) -> None:
        for incident in self.incidents:
            self.log.warning("%s (%s)", incident.sentence, incident.stage)
        connection = find_connection()
        if connection is None:
            return
        if connection.conn_type == "smtp":
            self._send_mail(connection, context)
        else:
            send(connection, self.document())

    @property
    def text(self) -> str:
        return "\n".join(f"Switchyard, {incident.stage.lower()}: {incident.sentence}" for incident in self.incidents)

    def document(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "incidents": [asdict(incident) | {"at": incident.at.isoformat()} for incident in self.incidents],
        }

    def _send_mail(self, connection: Connection, context: Context) -> None:
        from airflow.providers.smtp.notifications.smtp import SmtpNotifier

        extra = connection.extra_dejson
        SmtpNotifier(
            to=extra["to"],
            from_email=extra.get("from_email"),
            subject=self.incidents[0].sentence[:150],
            html_content=f"<pre>{html.escape(self.text, quote=False)}</pre>",
            smtp_conn_id=ALERT_CONNECTION,
        )(context)


def find_connection() -> Connection | None:
    try:
        return BaseHook.get_connection(ALERT_CONNECTION)
    except (AirflowNotFoundException, AirflowRuntimeError):
        return None


def send(connection: Connection, document: dict[str, Any]) -> None:
    """Send the document; repeat neither the address nor the answer in an error, as both may hold a secret."""
    headers = {"Content-Type": "application/json"}
    address = _address(connection)
    if connection.conn_type == "slackwebhook":
        address, document = f"{address}/{connection.password or ''}", {"text": document["text"]}
    elif connection.password:
        headers["Authorization"] = f"Bearer {connection.password}"
    # Not with httpx, which logs each address: the one of Slack is a secret.
    request = urllib.request.Request(address, data=json.dumps(document).encode(), headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):
            return
    except urllib.error.HTTPError as error:
        reason = f"it answered {error.code}"
    except (OSError, ValueError) as error:
        reason = type(error).__name__
    raise AirflowException(f"The alert could not be sent by the connection {ALERT_CONNECTION}: {reason}")


def _address(connection: Connection) -> str:
    host = (connection.host or "").rstrip("/")
    if "://" not in host:
        host = f"{connection.schema or 'https'}://{host}"
    return f"{host}:{connection.port}" if connection.port else host
