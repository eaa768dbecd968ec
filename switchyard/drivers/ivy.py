"""What Apache Ivy is asked for: the coordinates of every jar, as its XML files and its command line."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

# Named one by one: one jar's parent cannot be resolved everywhere, and Spark has most dependencies itself.
DELTA = (
    "io.delta:delta-spark_4.2_2.13:4.4.0",
    "io.delta:delta-storage:4.4.0",
    "io.delta:delta-kernel-api:4.4.0",
    "io.delta:delta-kernel-defaults:4.4.0",
    "io.delta:delta-kernel-unitycatalog:4.4.0",
    "io.unitycatalog:unitycatalog-client:0.6.0",
    "io.unitycatalog:unitycatalog-hadoop:0.6.0",
)
SPARK = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    # 4.0.0 on purpose: newer ones are not everywhere, and it lacks only delegation tokens under Spark 4.2.
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
# Hadoop 3.5.0 is what Spark 4.2.0 brings, and 2.35.4 the Amazon client that it was compiled with. Hadoop asks for that
# client in one bundle of 686 MB with every service of Amazon; these are the parts of it that reach S3, 13 MB. Netty,
# Apache's HTTP client and the rest are Spark's own.
AMAZON = """
    annotations apache-client arns auth aws-core aws-query-protocol aws-xml-protocol checksums checksums-spi crt-core
    endpoints-spi http-auth http-auth-aws http-auth-aws-eventstream http-auth-spi http-client-spi identity-spi
    json-utils metrics-spi netty-nio-client profiles protocol-core regions retries retries-spi s3 s3-transfer-manager
    sdk-core sts third-party-jackson-core utils utils-lite
"""
S3 = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    # 4.1.1 on purpose: newer ones are not everywhere, and the two classes in use are the same.
    "org.apache.spark:spark-hadoop-cloud_2.13:4.1.1",
    *(f"software.amazon.awssdk:{part}:2.35.4" for part in AMAZON.split()),
    "software.amazon.eventstream:eventstream:1.0.1",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
    "org.reactivestreams:reactive-streams:1.0.4",
)
BROKER = ("org.apache.kafka:kafka_2.13:4.3.1",)
# The broker logs through slf4j 1.7; this binds it to the log4j that it brings.
BROKER_LOGGING = ("org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",)
GROUPS = {"spark": (SPARK, ()), "delta": (DELTA, ()), "s3": (S3, ()), "broker": (BROKER_LOGGING, BROKER)}

_OFFLINE = ("UnknownHostException", "ConnectException", "SocketTimeoutException", "NoRouteToHostException")
_UNREACHABLE = (*_OFFLINE, "SSLHandshakeException", "Connection refused", "Server access error", "Host ")


def write_request(group: str, folder: Path, ivy_cache: Path, ivy_jar: Path, java: Path) -> list[str]:
    """Write Ivy's two files into the folder; return the command that fills `folder/jars/<group>`."""
    settings, module = folder / f"{group}-settings.xml", folder / f"{group}.xml"
    ElementTree.ElementTree(build_settings(ivy_cache)).write(settings)
    ElementTree.ElementTree(build_module(group)).write(module)
    pattern = folder / "jars" / group / "[artifact]-[revision].[ext]"
    options = ["-settings", settings, "-ivy", module, "-retrieve", pattern, "-types", "jar", "bundle"]
    return [str(part) for part in (java, "-jar", ivy_jar, *options)]


def build_settings(ivy_cache: Path) -> Element:
    root = Element("ivysettings")
    SubElement(root, "settings", defaultResolver="maven")
    SubElement(root, "caches", defaultCacheDir=str(ivy_cache))
    resolver = SubElement(SubElement(root, "resolvers"), "ibiblio", name="maven", m2compatible="true")
    # Without a mirror, Ivy asks Maven Central.
    if mirror := os.environ.get("SWITCHYARD_MAVEN_MIRROR"):
        resolver.set("root", mirror)
    return root


def build_module(group: str) -> Element:
    alone, with_dependencies = GROUPS[group]
    root = Element("ivy-module", version="2.0")
    SubElement(root, "info", organisation="switchyard", module=group)
    SubElement(SubElement(root, "configurations"), "conf", name="default")
    dependencies = SubElement(root, "dependencies")
    wanted = ((alone, "default->master", "false"), (with_dependencies, "default->compile,runtime,master", "true"))
    for coordinates, conf, transitive in wanted:
        for org, name, rev in (coordinate.split(":") for coordinate in coordinates):
            SubElement(dependencies, "dependency", org=org, name=name, rev=rev, conf=conf, transitive=transitive)
    return root


def explain_failure(output: str) -> str:
    """Return one sentence out of Ivy's pages of output."""
    if os.strerror(errno.ENOSPC) in output:
        return "the disk is full: free about 200 MB for the jars and run make setup again."
    if any(word in output for word in _UNREACHABLE):
        return "the Maven repository cannot be reached: check the network, or set SWITCHYARD_MAVEN_MIRROR."
    lines = [line.strip(" :\t") for line in output.splitlines()]
    reason = next((line for line in lines if "not found" in line or "FAILED" in line), "no reason given")
    return f"the jars could not be fetched: {reason}."
