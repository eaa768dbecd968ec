"""Every setting, with its default. The environment variable is the name in capitals after SWITCHYARD_."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from switchyard.errors import InputError
from switchyard.layout import Layout, Workspace

JoinType = Literal["left", "inner", "natural", "asof"]
LOCAL_HOME = ".switchyard"


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SWITCHYARD_", extra="ignore", frozen=True)

    root: str = Field(LOCAL_HOME, description="Where tables and checkpoints live: a folder or a URI.")
    home: Path | None = Field(
        None, description="Folder for process ids, logs and secrets; the root when that is a folder."
    )

    kafka_bootstrap: str | None = Field(
        None, description="An external broker, host:port[,host:port]; unset means the embedded one."
    )
    kafka_port: int = Field(9092, ge=1, le=65535, description="Port of the embedded broker, on loopback.")
    airflow_port: int = Field(8080, ge=1, le=65535, description="Port of the Airflow UI, on loopback.")

    users_topic: str = Field("users", description="Users topic of the first generation.")
    accounts_topic: str = Field("accounts", description="Accounts topic of the first generation.")
    join_type: JoinType = Field("left", description="Join type of the first generation.")
    control_topic: str = Field("control", description="The control topic.")

    linger_seconds: float = Field(8, ge=0, description="How long a replaced generation goes on writing.")
    heartbeat_seconds: float = Field(5, gt=0, description="An idle driver reports progress this often.")
    stale_seconds: float = Field(15, gt=0, description="An older heartbeat is reported as unhealthy.")

    max_offsets_per_trigger: int = Field(
        500_000, gt=0, description="Most records one micro-batch takes from one topic."
    )
    small_batch_records: int = Field(
        50_000, ge=0, description="A micro-batch of up to so many records is committed from the driver."
    )
    state_retention: timedelta | None = Field(
        None, description="Forget join state older than this (ISO 8601, e.g. P7D); off means never."
    )
    trigger_seconds: float = Field(1.0, ge=0, description="Least time between the starts of two micro-batches.")
    shuffle_partitions: int = Field(2, gt=0, description="State partitions of a generation, for its life.")
    driver_memory: str = Field("2g", pattern=r"^\d+[mg]$", description="Heap of a generation's driver.")
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
