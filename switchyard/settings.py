"""Every setting, with its default. The environment variable is the name in capitals after SWITCHYARD_."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from switchyard.errors import InputError
from switchyard.layout import Layout, Workspace
from switchyard.object_store import check_root
from switchyard.policies import STANDSTILL, Executors, Keeping, Limits, Policy, Rules, Target

JoinType = Literal["left", "inner", "natural", "asof"]
LOCAL_HOME = ".switchyard"
_URL = re.compile(
    r"https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>\d{1,5}))?(/[A-Za-z0-9._~/-]*)?", re.IGNORECASE
)


def check_url(url: str) -> str:
    """Return the address without a slash at its end; raise ValueError, for the validator, if it is not valid."""
    match = _URL.fullmatch(url)
    if match is None or not 0 < int(match["port"] or 80) < 65536:
        raise ValueError("write http://host:port or https://host:port, without a login or a query in it")
    return url.rstrip("/")


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SWITCHYARD_", extra="ignore", frozen=True)

    root: Annotated[str, AfterValidator(check_root)] = Field(
        LOCAL_HOME, description="Where tables and checkpoints live: a folder, or s3://bucket/path."
    )
    home: Path | None = Field(
        None, description="Folder for process ids, logs and secrets; the root when that is a folder."
    )

    kafka_bootstrap: str | None = Field(
        None, description="An external broker, host:port[,host:port]; unset means the embedded one."
    )
    kafka_properties: Path | None = Field(
        None, description="A file with client settings for that broker, such as its login; readable by its owner only."
    )
    kafka_control_properties: Path | None = Field(
        None, description="The same, with bootstrap.servers, if the control topic is on another cluster than the data."
    )
    kafka_port: int = Field(9092, ge=1, le=65535, description="Port of the embedded broker, on loopback.")
    airflow_port: int = Field(8080, ge=1, le=65535, description="Port of the Airflow UI, on loopback.")
    airflow_url: Annotated[str, AfterValidator(check_url)] | None = Field(
        None,
        description="An Airflow that `switchyard up` did not start, http(s)://host:port; unset means the one here.",
    )

    users_topic: str = Field("users", description="Users topic of the first generation.")
    accounts_topic: str = Field("accounts", description="Accounts topic of the first generation.")
    join_type: JoinType = Field("left", description="Join type of the first generation.")
    control_topic: str = Field("control", description="The control topic.")

    group_prefix: str = Field(
        "switchyard-",
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="How the names of all consumer groups begin, for clusters that allow only some.",
    )

    allowed_topics: str = Field(
        "", description="Topics that may be joined: names or patterns with `*`, with commas between; empty allows all."
    )

    linger_seconds: float = Field(8, ge=0, description="How long a replaced generation goes on writing.")
    max_linger_generations: int = Field(2, ge=0, description="Most generations that linger at the same time.")
    keep_generations: bool = Field(
        False,
        description="Keep every replaced generation running for the time below, without the limits of lingering.",
    )
    retire_after_seconds: float = Field(
        900,
        ge=0,
        description="How long a kept generation goes on writing; 0: until `switchyard down` or `switchyard retire`.",
    )
    ready_deadline_seconds: float = Field(
        120,
        gt=0,
        description="A swap not flipped in this time, plus three times the estimate for its records, has failed.",
    )
    min_dwell_seconds: float = Field(5, ge=0, description="Least time between two flips; a rollback need not wait.")
    probation_seconds: float = Field(
        30, gt=0, description="A new generation that is silent for so long while the old one lingers is undone."
    )
    gate_records: int = Field(
        40_000,
        ge=0,
        description="The data gate compares about so many records and so many joined rows; 0 turns it off.",
    )
    heartbeat_seconds: float = Field(5, gt=0, description="An idle driver reports progress this often.")
    stale_seconds: float = Field(15, gt=0, description="An older heartbeat is reported as unhealthy.")

    hung_seconds: float = Field(45, gt=0, description="A driver that is silent for so long is started again.")
    stuck_seconds: float = Field(
        120,
        gt=0,
        description="A driver whose work has not moved for so long while records wait is started again; "
        "a swap that is not ready fails.",
    )
    lost_seconds: float = Field(300, gt=0, description="What was not repaired for so long needs a person.")
    least_free_gigabytes: float = Field(1, ge=0, description="Less free disk space needs a person.")
    reject_alert_share: float = Field(
        0.5, gt=0, le=1, description="A greater share of rejected records needs a person."
    )

    vacuum_retention_hours: float = Field(
        24, ge=1, description="Replaced files and old versions stay for so long; no reader or audit may take longer."
    )
    keep_retired_days: float = Field(
        7,
        ge=0,
        description="A retired generation keeps its rows and checkpoint so long; the one before the active stays.",
    )
    keep_log_days: float = Field(
        30, ge=1, description="Lines of the table logs, logs of tasks and of ended processes go after that."
    )
    keep_progress_days: float = Field(
        2, ge=0.1, description="Older heartbeats go, and older batches of progress are summed up in one row."
    )
    compact_file_megabytes: int = Field(
        16, ge=1, description="Maintenance makes files of the big tables about so large."
    )
    compact_after_minutes: float = Field(10, ge=0, description="Files younger than that are not compacted yet.")

    max_offsets_per_trigger: int = Field(
        500_000, gt=0, description="Most records one micro-batch takes from one topic."
    )
    small_batch_records: int = Field(
        50_000, ge=0, description="A micro-batch of up to so many records is committed from the driver."
    )
    most_batch_rows: int = Field(
        50_000_000,
        gt=0,
        description="A micro-batch or a task of a backfill with more rows fails: few userIds have very many events.",
    )
    state_retention: timedelta | None = Field(
        None, description="Forget join state older than this (ISO 8601, e.g. P7D); off means never."
    )
    trigger_seconds: float = Field(
        1.0,
        ge=0,
        description="Least time between the starts of two micro-batches. Rows that stand still are told 20 s after it.",
    )
    shuffle_partitions: int = Field(2, gt=0, description="State partitions of a generation, for its life.")
    driver_memory: str = Field("768m", pattern=r"^\d+[mg]$", description="Heap of a generation's driver.")
    driver_java_options: str = Field(
        "-XX:+UseSerialGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
        "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000",
        pattern=r"^(-\S+( |$))*$",
        description="Options of the JVM of a driver on this machine; these are for few cores and a small heap.",
    )
    executors: int = Field(
        2, ge=1, description="Executors of each driver on a cluster; with a local master the driver does all the work."
    )
    executor_cores: int = Field(1, ge=1, description="Cores of an executor, on a cluster.")
    executor_memory: str = Field("1g", pattern=r"^\d+[mg]$", description="Heap of an executor, on a cluster.")
    spark_ui_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="Port of a driver's Spark UI with its metrics, or the next free one; unset: no UI.",
    )
    spare: bool = Field(
        False, description="Keep a warmed-up driver that takes the next swap; it needs one more heap, also at rest."
    )
    spark_master: str = Field(
        "local[2]", description="Where jobs run when the CLI starts them, and the first spark_default."
    )

    @property
    def layout(self) -> Layout:
        return Layout(self.root)

    @property
    def workspace(self) -> Workspace:
        home = self.home or Path(self.root if self.layout.is_local else LOCAL_HOME)
        return Workspace(home.absolute())

    @property
    def rules(self) -> Rules:
        return Rules(
            ready_deadline=timedelta(seconds=self.ready_deadline_seconds),
            linger=timedelta(seconds=self.linger_seconds),
            max_lingering=self.max_linger_generations,
            is_keeping=self.keep_generations,
            keep=timedelta(seconds=self.retire_after_seconds) if self.retire_after_seconds else None,
            dwell=timedelta(seconds=self.min_dwell_seconds),
            probation=timedelta(seconds=self.probation_seconds),
            silence=timedelta(seconds=self.stale_seconds),
            stuck=timedelta(seconds=self.stuck_seconds),
        )

    @property
    def most_generations(self) -> int:
        """How many generations Airflow runs at the same time; memory may allow fewer kept ones."""
        return 64 if self.keep_generations else 8

    @property
    def limits(self) -> Limits:
        return Limits(
            stale=timedelta(seconds=self.stale_seconds),
            hung=timedelta(seconds=self.hung_seconds),
            stuck=timedelta(seconds=self.stuck_seconds),
            starting=timedelta(seconds=self.ready_deadline_seconds),
            lost=timedelta(seconds=self.lost_seconds),
            least_free_bytes=int(self.least_free_gigabytes * 2**30),
            reject_share=self.reject_alert_share,
            has_spare=self.spare,
            standstill=STANDSTILL + timedelta(seconds=self.trigger_seconds),
        )

    @property
    def keeping(self) -> Keeping:
        return Keeping(
            retention=timedelta(hours=self.vacuum_retention_hours),
            retired=timedelta(days=self.keep_retired_days),
            logs=timedelta(days=self.keep_log_days),
            progress=timedelta(days=self.keep_progress_days),
            file_bytes=self.compact_file_megabytes * 2**20,
            compact_after=timedelta(minutes=self.compact_after_minutes),
        )

    @property
    def policy(self) -> Policy:
        return Policy(
            Target(self.users_topic, self.accounts_topic, self.join_type),
            self.control_topic,
            tuple(name.strip() for name in self.allowed_topics.split(",") if name.strip()),
        )

    @property
    def executor_sizes(self) -> Executors:
        return Executors(self.executors, self.executor_cores, self.executor_memory)

    @property
    def bootstrap(self) -> str:
        return self.kafka_bootstrap or f"127.0.0.1:{self.kafka_port}"


def load_settings() -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        problems = "; ".join(
            f"SWITCHYARD_{'_'.join(map(str, item['loc'])).upper()}: {item['msg']}" for item in error.errors()
        )
        raise InputError(f"a setting is not valid: {problems}") from None
