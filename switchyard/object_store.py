"""Check a root on an object store with the S3 API, and configure delta-rs, Arrow and Hadoop for it. Pure.

Credentials do not pass through here: each client takes them by AWS's own rules, from the environment, from a profile
file or from the role of the machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from switchyard.errors import SwitchyardError

SCHEME = "s3://"
DEFAULT_REGION = "us-east-1"
"""Stores of other makers accept this region if they need one at all."""

_ROOT = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()/=-]*)?")
_OTHER_NAMES = re.compile(r"s3[an]://", re.IGNORECASE)
_REFUSED = ("403 Forbidden", "necessary privileges", "AccessDenied", "ACCESS_DENIED")
# The address is asked for a role of the machine when no login was found anywhere else.
_NO_LOGIN = ("credential", "Credential", "401 Unauthorized", "169.254.169.254")
_ELSEWHERE = ("301 Moved", "redirect", "PermanentRedirect")
_KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


def is_on_object_store(uri: str) -> bool:
    return uri.startswith(SCHEME)


def check_root(root: str) -> str:
    """Return the root; raise ValueError, for the validator, if it is on S3 and not valid."""
    if _OTHER_NAMES.match(root):
        raise ValueError("write s3:// here; Spark's own s3a:// is made from it")
    if root.lower().startswith(SCHEME) and not _ROOT.fullmatch(root):
        raise ValueError("a root on an object store is s3://bucket/path, without a login, a port or a query in it")
    return root


@dataclass(frozen=True)
class ObjectStore:
    endpoint: str | None
    """None for AWS itself."""
    region: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ObjectStore:
        endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or None
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
        return cls(endpoint and endpoint.rstrip("/"), region)

    @property
    def has_tls(self) -> bool:
        return self.endpoint is None or not self.endpoint.startswith("http://")

    @property
    def name(self) -> str:
        return self.endpoint or f"AWS in {self.region}"


def find_store() -> ObjectStore:
    return ObjectStore.of(os.environ)


def delta_options(store: ObjectStore) -> dict[str, str]:
    options = {
        # A commit is a compare-and-set: a version is written only if it is not there. Set here, because a variable of
        # the environment could change a default.
        "conditional_put": "etag",
        "aws_s3_allow_unsafe_rename": "false",
        # Without it, delta-rs looks for a login in fewer places when the endpoint is not Amazon's own.
        "aws_force_credential_load": "true",
        "region": store.region,
        "allow_http": str(not store.has_tls).lower(),
        "connect_timeout": "5s",
        "retry_timeout": "60s",
    }
    return options | ({"endpoint": store.endpoint} if store.endpoint else {})


def arrow_options(store: ObjectStore) -> dict[str, str]:
    """Return the options for `pyarrow.fs.S3FileSystem`."""
    return {"region": store.region} | ({"endpoint_override": store.endpoint} if store.endpoint else {})


def hadoop_conf(store: ObjectStore) -> dict[str, str]:
    # Without keys: Spark hands those in the driver's environment to its executors.
    s3a = "spark.hadoop.fs.s3a"
    providers = (
        "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
        "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
    )
    conf = {
        f"{s3a}.endpoint.region": store.region,
        f"{s3a}.aws.credentials.provider": ",".join(providers),
        "spark.hadoop.fs.AbstractFileSystem.s3a.impl": "org.apache.hadoop.fs.s3a.S3A",
        # A file of a checkpoint appears at once when it is whole; in a bucket, renaming is a copy and a removal.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
        ),
        # Files of executors appear at their final place when their job is done, without a copy.
        f"{s3a}.committer.name": "magic",
        "spark.sql.sources.commitProtocolClass": "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol",
        "spark.sql.parquet.output.committer.class": (
            "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter"
        ),
    }
    if store.endpoint:
        conf |= {
            f"{s3a}.endpoint": store.endpoint,
            f"{s3a}.path.style.access": "true",
            f"{s3a}.connection.ssl.enabled": str(store.has_tls).lower(),
        }
    return conf


def to_hadoop(uri: str) -> str:
    return f"s3a://{uri.removeprefix(SCHEME)}" if is_on_object_store(uri) else uri


def explain_failure(store: ObjectStore, uri: str, text: str) -> SwitchyardError:
    """Explain a client's error in one sentence, without any text of the store."""
    bucket = uri.removeprefix(SCHEME).split("/")[0]
    if "NoSuchBucket" in text:
        reason = f"it has no bucket {bucket}: create it, or name another one in SWITCHYARD_ROOT"
    elif any(word in text for word in _NO_LOGIN):
        reason = f"there is no login for it: set {_KEYS}, name a profile, or give the machine a role"
    elif any(word in text for word in _REFUSED):
        reason = f"it does not let this login use the bucket {bucket}: check {_KEYS}, or the role and its rights"
    elif any(word in text for word in _ELSEWHERE):
        reason = f"the bucket {bucket} is in another region: set AWS_REGION"
    else:
        reason = "it does not answer: check AWS_ENDPOINT_URL and the network, and look whether it runs"
    return SwitchyardError(f"the object store ({store.name}) cannot be used: {reason}")
