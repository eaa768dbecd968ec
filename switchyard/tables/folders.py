"""Open places below the root: a folder on a disk, or a path in a bucket. Nothing else knows how a root is opened."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from switchyard.object_store import (
    SCHEME,
    ObjectStore,
    arrow_options,
    delta_options,
    find_store,
    is_on_object_store,
    to_hadoop,
)


def options_of(uri: str) -> dict[str, str] | None:
    """Return what delta-rs must be told to open a table; None for a folder."""
    return delta_options(find_store()) if is_on_object_store(uri) else None


@lru_cache(maxsize=4)
def _open_bucket(store: ObjectStore) -> pafs.FileSystem:
    # Cached: each has separate connections, and may have to fetch a login. Delayed open: a small file is one request.
    return pafs.S3FileSystem(**arrow_options(store), allow_delayed_open=True)


@dataclass(frozen=True)
class Folder:
    """One place, on any file system that Arrow opens. Names of files are relative to it."""

    filesystem: pafs.FileSystem
    path: str

    @classmethod
    def at(cls, uri: str) -> Folder:
        place = uri.rstrip("/")
        if is_on_object_store(place):
            return cls(_open_bucket(find_store()), place.removeprefix(SCHEME))
        if "://" in place:
            return cls(*pafs.FileSystem.from_uri(place))
        return cls(pafs.LocalFileSystem(), place)

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    @property
    def is_bucket(self) -> bool:
        return isinstance(self.filesystem, pafs.S3FileSystem)

    def as_filesystem(self) -> pafs.FileSystem:
        """Return a file system that begins at this place, for delta-rs's datasets."""
        # The one that delta-rs makes calls back into Python from Arrow's threads: the process may abort at its exit.
        return pafs.SubTreeFileSystem(self.path, self.filesystem)

    def full(self, relative: str) -> str:
        return f"{self.path}/{relative}"

    def spark_uri(self, relative: str) -> str:
        if self.is_bucket:
            return to_hadoop(f"{SCHEME}{self.full(relative)}")
        return f"{'file' if self.is_local else self.filesystem.type_name}://{self.full(relative)}"

    def make(self, relative: str = "") -> None:
        # A bucket has no folders; an empty one would be one more object.
        if not self.is_bucket:
            self.filesystem.create_dir(self.full(relative) if relative else self.path, recursive=True)

    def read(self, relative: str) -> pa.Table:
        with self.filesystem.open_input_file(self.full(relative)) as source:
            return pq.ParquetFile(source).read()

    def read_bytes(self, relative: str) -> bytes:
        with self.filesystem.open_input_stream(self.full(relative)) as source:
            return bytes(source.read())

    def write(self, relative: str, content: bytes) -> None:
        """Write a file so that a reader sees all of it or nothing."""
        self.make()
        # In a bucket one request is atomic; on a disk a rename is.
        draft = self.full(relative) if self.is_bucket else f"{self.full(relative)}.{uuid.uuid4().hex}"
        with self.filesystem.open_output_stream(draft) as sink:
            sink.write(content)
        if not self.is_bucket:
            self.filesystem.move(draft, self.full(relative))

    def list_parquet(self, relative: str) -> list[str]:
        """List the Parquet files directly below a folder; an absent folder has none."""
        selector = pafs.FileSelector(self.full(relative), allow_not_found=True)
        infos = self.filesystem.get_file_info(selector)
        return sorted(f"{relative}/{info.base_name}" for info in infos if info.extension == "parquet")

    def list_all(self) -> list[pafs.FileInfo]:
        """List every file and folder below this place."""
        return list(self.filesystem.get_file_info(pafs.FileSelector(self.path, allow_not_found=True, recursive=True)))

    def relative(self, info: pafs.FileInfo) -> str:
        return str(info.path).removeprefix(self.path).lstrip("/")

    def delete_folder(self, relative: str) -> None:
        """Delete a folder, with what another process writes into it meanwhile."""
        for is_last in (False, False, True):
            if self.filesystem.get_file_info(self.full(relative)).type != pafs.FileType.Directory:
                return
            try:
                self.filesystem.delete_dir(self.full(relative))
            except OSError as error:
                # A bucket may go on showing a folder for a moment after its last object has gone.
                if self.is_bucket and isinstance(error, FileNotFoundError):
                    return
                if is_last:
                    raise

    def has_file(self, relative: str) -> bool:
        return bool(self.filesystem.get_file_info(self.full(relative)).type == pafs.FileType.File)

    def delete_file(self, relative: str) -> None:
        if self.has_file(relative):
            self.filesystem.delete_file(self.full(relative))
