"""Check that a root does what every commit relies on: of two writers of the same version it refuses one."""

from __future__ import annotations

import uuid

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from switchyard.errors import SwitchyardError
from switchyard.layout import Layout
from switchyard.object_store import explain_failure, find_store, is_on_object_store
from switchyard.tables.folders import Folder, options_of

PROOFS = "proofs"


def prove_commits(layout: Layout) -> None:
    """Commit one version of a test table twice, and remove the table; raise if both commits succeed."""
    name = uuid.uuid4().hex
    uri = layout.under(PROOFS, name)
    try:
        is_refused = _commit_twice(uri)
        Folder.at(layout.under(PROOFS)).delete_folder(name)
    except OSError as error:
        if not is_on_object_store(uri):
            raise
        raise explain_failure(find_store(), uri, str(error)) from None
    if not is_refused:
        raise SwitchyardError(
            f"{layout.under()} takes two commits of the same version, so rows would be lost: use a store that knows "
            "conditional writes (If-None-Match)"
        )


def _commit_twice(uri: str) -> bool:
    rows, options = pa.table({"number": [1]}), options_of(uri)
    at_once = CommitProperties(max_commit_retries=0)
    write_deltalake(uri, rows, storage_options=options)
    first, second = (DeltaTable(uri, storage_options=options) for _ in range(2))
    write_deltalake(first, rows, mode="overwrite", commit_properties=at_once)
    try:
        write_deltalake(second, rows, mode="overwrite", commit_properties=at_once)
    except CommitFailedError:
        return True
    return False
