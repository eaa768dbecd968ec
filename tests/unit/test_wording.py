"""What people read holds no values: e-mail addresses are masked, what other libraries quote is cut out."""

from __future__ import annotations

import json
import logging

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from switchyard.errors import SwitchyardError
from switchyard.layout import Layout
from switchyard.swap import transitions
from switchyard.swap.history import Entry, Event
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from switchyard.tables.logs import write_log
from switchyard.wording import CleanFormatter, clean_foreign_text, describe_error, mask_emails

WORDS = st.text("abcdefghijklmnopqrstuvwxyz.+-_é", min_size=1, max_size=12)
TEMPLATES = (
    '[CAST_INVALID_INPUT] The value \'{}\' of the type "STRING" cannot be cast to "BIGINT" because it is malformed.',
    'java.lang.NumberFormatException: For input string: "{}"',
    "Failed to parse string: '{}' as a scalar of type int64",
    'Unexpected character in {{"name": "{}", "age": 3}}',
    "unclosed: '{}",
)


@given(user=WORDS, host=WORDS, around=st.sampled_from(["{}", "<{}>", "({})", "to={},", '"{}"', "a {} b", "mailto:{}"]))
def test_no_address_stays(user: str, host: str, around: str) -> None:
    address = f"{user}@{host}"
    assert mask_emails(around.format(address)) == around.format("(e-mail)")


@given(text=st.text(st.characters(exclude_characters="@")))
def test_text_without_an_address_stays_as_it_is(text: str) -> None:
    assert mask_emails(text) == text


@pytest.mark.parametrize("template", TEMPLATES)
@settings(max_examples=40)
@given(value=st.text(min_size=3, max_size=700))
def test_what_others_quote_is_cut_out(template: str, value: str) -> None:
    # A value such as `..'` is a part of what takes the place of every quotation.
    rest = template.format("") + clean_foreign_text(template.format("x"))
    assume(value.strip() and value not in rest)
    # A quote in the value itself ends what nobody else has closed.
    assume(not template.startswith("unclosed") or not {"'", '"'} & set(value))
    cleaned = clean_foreign_text(template.format(value))
    assert value not in cleaned
    assert len(cleaned) <= 500


@pytest.mark.parametrize("value", ["O'Brien", "O' Brien", 'say "hi" now', "back\\' slash"])
def test_a_value_with_quotes_is_cut_out_whole(value: str) -> None:
    cleaned = clean_foreign_text(f"The value '{value}' of the type \"STRING\" cannot be cast.")
    assert cleaned == "The value '...' cannot be cast."


def test_nothing_is_told_after_a_quote_that_is_not_closed_in_its_line() -> None:
    cleaned = clean_foreign_text("first\nThe value 'two\nlines' of the type\nlast")
    assert cleaned == "first\nThe value '...'"


def test_plain_words_stay() -> None:
    text = "org.apache.spark.SparkException: Job aborted; don't know why, can't say more"
    assert clean_foreign_text(text) == text


def test_our_own_sentences_keep_their_quotes_and_lose_addresses() -> None:
    error = SwitchyardError("there is no table named 'nope' for ann@example.org")
    assert describe_error(error) == "there is no table named 'nope' for (e-mail)"
    assert describe_error(KeyError()) == "KeyError"


def test_a_logged_exception_shows_the_place_and_not_the_value() -> None:
    try:
        pa.array(["Ann Other"]).cast(pa.int64())
    except pa.ArrowInvalid as error:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "mail to ann@example.org", (), (type(error), error, None))
        record.exc_info = (type(error), error, error.__traceback__)
    said = CleanFormatter("%(levelname)s %(message)s").format(record)
    assert said.startswith("ERROR mail to (e-mail)\n")
    assert __file__ in said
    assert said.endswith("ArrowInvalid: Failed to parse string: '...' as a scalar of type int64")


def test_logs_and_history_hold_no_address(layout: Layout) -> None:
    write_log(layout, "it failed for ann@example.org")
    entry = Entry("one", Event.FAILED, requestedBy="test", detail="it failed for ann@example.org")
    transitions.note(HistoryStore(layout), entry)
    written = json.dumps([store.read_rows(layout, name) for name in ("logs", "swap_history")], default=str)
    assert "ann@" not in written
    assert written.count("it failed for (e-mail)") == 2
