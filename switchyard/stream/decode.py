"""Decode the bytes of a Kafka record into typed columns, or into the reason why not. All of it runs inside the JVM.

Nearly every value is plain: a flat object of simple strings and numbers. If a pattern recognizes it, Spark's fast
parser (`from_json`) reads it as the strict one would. Of other values it would accept some that are not valid.

Other values are parsed strictly (`try_parse_json`), as the first of two elements of an array. The second, a fixed text,
is found only if the value is exactly one JSON document. If a field is repeated, the last one counts.
"""

from __future__ import annotations

from functools import cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from switchyard.records import Field, Side

END = "\\u0001end"
DECODE_CONF = {"spark.sql.variant.allowDuplicateKeys": "true"}
MOST_PLAIN_BYTES = 65_536
NUMBERS = r"^(BIGINT|DECIMAL\(.*\)|DOUBLE)$"


def decode(records: DataFrame, side: Side) -> DataFrame:
    """Turn Kafka records into fields, `kind` (valid, reject, tombstone), `text`, `reason` and `owner`.

    The owner is the key of a rejected record, where it has one: so it can be forgotten with its person. It is not in
    the column of the key, because Spark infers whether a field can be null, and the state of a join must not change.

    | value                       | kind      | userId | reason                                           |
    |-----------------------------|-----------|--------|--------------------------------------------------|
    | {"userId": "a", "age": 3}   | valid     | a      | -                                                |
    | {"userId": 7}               | valid     | 7      | -                                                |
    | {"name": "x"}               | reject    | -      | userId is missing                                |
    | {"userId": "a", "age": "3"} | reject    | -      | age must be a whole number of 64 bits, is string |
    | -                           | tombstone | -      | -                                                |
    """
    steps, decoded = _expressions(side)
    for name, expression in steps.items():
        records = records.withColumn(name, expression)
    return records.select(*decoded)


@cache
def _expressions(side: Side) -> tuple[dict[str, Column], list[Column]]:
    """Return columns to add one after the other, each made of those before it, and the columns to select then."""
    # Cached: they are hundreds of calls into the JVM, and belong to no session and no frame.
    text = F.col("value").cast("string")
    wrapped = F.concat(F.lit("["), text, F.lit(f',"{END}"]'))
    is_plain = F.col("is_text") & (F.octet_length("value") <= MOST_PLAIN_BYTES) & text.rlike(plain_pattern(side))
    schema = ", ".join(f"{name} {kind}" for name, kind in side.columns.items())
    is_read = F.coalesce(F.col("plain")[side.key].isNotNull(), F.lit(False))
    is_valid = F.col("value").isNotNull() & F.col("reason").isNull()
    decoded = [
        F.when(F.col("value").isNull(), "tombstone")
        .when(F.col("reason").isNotNull(), "reject")
        .otherwise("valid")
        .alias("kind"),
        *[
            F.when(is_read, F.col("plain")[field.name]).when(is_valid, _value(field.name, field.type)).alias(field.name)
            for field in side.fields
        ],
        F.col("timestamp").alias("ts"),
        F.col("partition"),
        F.col("offset"),
        F.when(F.col("reason").isNotNull(), F.when(F.col("is_text"), text).otherwise(F.base64("value"))).alias("text"),
        F.col("reason"),
        F.when(~is_valid, _owner(side)).alias("owner"),
    ]
    steps = {
        "is_text": F.is_valid_utf8(text),
        "plain": F.when(is_plain, F.from_json(text, schema)),
        "document": F.when(F.col("is_text") & ~is_read, F.try_parse_json(wrapped)),
        "reason": F.when(F.col("value").isNotNull() & ~is_read, _reason(side)),
    }
    return steps, decoded


def plain_pattern(side: Side) -> str:
    """Match flat objects with fields of the right types, strings without escapes, and numbers that nothing rounds."""
    # All quantifiers are possessive, so the pattern never backtracks, and a long value takes time linear in its length.
    space, text = r"[ \t\r\n]*+", r'"[^"\\\x00-\x1f]*+"'
    whole, number = r"(?:0|-?+[1-9][0-9]{0,14}+)", r"(?:0|-?+[1-9][0-9]{0,14}+)(?:\.[0-9]{1,6}+)?+"
    values = {"string": f"(?:{text}|null)", "long": f"(?:{whole}|null)", "double": f"(?:{number}|null)"}
    other = "|".join(side.columns)
    members = [
        f'"{name}"{space}:{space}{text if name == side.key else values[kind]}' for name, kind in side.columns.items()
    ]
    members.append(f'(?!"(?:{other})"){text}{space}:{space}(?:{text}|{number}|true|false|null)')
    member = f"(?:{'|'.join(members)})"
    return rf"\A{space}\{{{space}(?:{member}{space}(?:,{space}(?!\}})|(?=\}})))*+\}}{space}\z"


def _owner(side: Side) -> Column:
    found = _type_at(_path(side.key))
    return F.when((found == "STRING") | found.rlike(NUMBERS), _value(side.key, "string"))


def _path(name: str) -> str:
    return f"$[0].{name}"


def _type_at(path: str) -> Column:
    return F.schema_of_variant(F.try_variant_get("document", path, "variant"))


def _value(name: str, kind: str) -> Column:
    return F.try_variant_get("document", _path(name), kind)


def _reason(side: Side) -> Column:
    end = F.try_variant_get("document", "$[1]", "string")
    root = _type_at("$[0]")
    return F.coalesce(
        F.when(~F.col("is_text"), "the value is not UTF-8 text (it is kept here as base64)"),
        F.when(
            end.isNull() | (end != "\x01end") | _type_at("$[2]").isNotNull(),
            "the value is not one JSON document",
        ),
        F.when(~root.startswith("OBJECT"), "the value is not a JSON object"),
        *[_key_reason(field.name) if field.name == side.key else _field_reason(field) for field in side.fields],
    )


def _key_reason(name: str) -> Column:
    found = _type_at(_path(name))
    wrong = ~(found == "STRING") & ~found.rlike(NUMBERS)
    return F.when(_is_absent(found), f"{name} is missing").when(wrong, _complaint(name, "a string or a number", found))


def _is_absent(found: Column) -> Column:
    return found.isNull() | (found == "VOID")


def _field_reason(field: Field) -> Column:
    found = _type_at(_path(field.name))
    is_there = ~_is_absent(found)
    if field.type == "string":
        return F.when(is_there & (found != "STRING"), _complaint(field.name, "a string", found))
    if field.type == "long":
        return F.when(is_there & (found != "BIGINT"), _complaint(field.name, "a whole number of 64 bits", found))
    is_too_big = F.abs(_value(field.name, field.type)) == F.lit(float("inf"))
    wrong = F.when(is_there & ~found.rlike(NUMBERS), _complaint(field.name, "a number", found))
    return wrong.when(is_there & is_too_big, f"{field.name} is too large for a double")


def _complaint(name: str, wanted: str, found: Column) -> Column:
    # The type only, never the value: reasons are shown where personal data must not be.
    short = F.regexp_extract(F.lower(found), "^[a-z]+", 0)
    return F.concat(F.lit(f"{name} must be {wanted}, is "), short)
