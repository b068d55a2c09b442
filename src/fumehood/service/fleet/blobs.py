"""The store of contents, compressed and named by their hashes: in Redis, in a directory or in a bucket (by fsspec).

A content that is fetched is compared with its name, so a store can lose contents, but not change them.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from redis import Redis

from fumehood.errors import BadRequest, FumehoodError
from fumehood.service.fleet.queue import KEPT_S

_MAX_IN_REDIS = 32 << 20  # bytes of one content, compressed
_BATCH_BYTES = 8 << 20  # that one request asks for
_BATCH_ITEMS = 500

Item = TypeVar("Item")


def content_hash(data: bytes) -> str:
    """Return the name of a content: its SHA-256 sum."""
    return hashlib.sha256(data).hexdigest()


class MissingContent(FumehoodError):
    """A content that a job needs is not in the store, or is damaged there."""


class Blobs:
    """A store of contents by their hashes. `sent` and `fetched` count the bytes that were transferred."""

    def __init__(self) -> None:
        self.sent = self.fetched = 0

    def missing(self, hashes: Sequence[str]) -> set[str]:
        """Return the hashes whose contents are not in the store; the store keeps the others for a while."""
        raise NotImplementedError

    def _put(self, packed: Mapping[str, bytes]) -> None:
        raise NotImplementedError

    def _get(self, hashes: Sequence[str]) -> Sequence[bytes | None]:
        raise NotImplementedError

    def put(self, contents: Iterable[bytes]) -> Iterator[str]:
        """Store contents in batches, and yield their hashes."""
        packed = ((content_hash(data), zlib.compress(data, 1)) for data in contents)
        for batch in _batches(packed, lambda each: len(each[1])):
            by_hash = dict(batch)
            self._put(by_hash)
            self.sent += sum(map(len, by_hash.values()))
            yield from (name for name, _ in batch)

    def get(self, sizes: Iterable[tuple[str, int]]) -> Iterator[tuple[str, bytes]]:
        """Fetch contents in batches, by their hashes, each with the most bytes that it may have."""
        for batch in _batches(sizes, lambda each: each[1]):
            for (name, size), packed in zip(batch, self._get([name for name, _ in batch]), strict=True):
                if packed is None:
                    raise MissingContent(f"{name} is not in the store", hint="send the job again")
                self.fetched += len(packed)
                try:
                    data = zlib.decompressobj().decompress(packed, size + 1)  # no more than was announced
                except zlib.error as error:
                    raise MissingContent(f"{name} is damaged in the store: {error}") from error
                if len(data) > size or content_hash(data) != name:
                    hint = "remove it there, and send the job again"
                    raise MissingContent(f"{name} is damaged in the store", hint=hint)
                yield name, data


def _batches(items: Iterable[Item], size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield items in lists, each with a limited number and total size; one item alone may be larger."""
    batch: list[Item] = []
    total = 0
    for each in items:
        size = size_of(each)
        if batch and (total + size > _BATCH_BYTES or len(batch) == _BATCH_ITEMS):
            yield batch
            batch, total = [], 0
        batch.append(each)
        total += size
    if batch:
        yield batch


class RedisBlobs(Blobs):
    """A store in Redis itself, for small projects. A content that nobody asks for is gone after a week."""

    def __init__(self, connection: Redis) -> None:
        super().__init__()
        self._connection = connection

    def missing(self, hashes: Sequence[str]) -> set[str]:
        """Return the hashes whose contents are not there; the others stay for another week."""
        missing: set[str] = set()
        for batch in _batches(hashes, len):
            with self._connection.pipeline(transaction=False) as pipeline:
                for name in batch:
                    pipeline.expire(_key(name), KEPT_S)
                missing |= {name for name, exists in zip(batch, pipeline.execute(), strict=True) if not exists}
        return missing

    def _put(self, packed: Mapping[str, bytes]) -> None:
        largest = max(map(len, packed.values()))
        if largest > _MAX_IN_REDIS:
            raise BadRequest(
                f"{largest >> 20} MiB are too much for Redis", hint="--store names a directory or bucket for all"
            )
        with self._connection.pipeline(transaction=False) as pipeline:
            for name, data in packed.items():
                pipeline.set(_key(name), data, ex=KEPT_S)
            pipeline.execute()

    def _get(self, hashes: Sequence[str]) -> Sequence[bytes | None]:
        contents: list[bytes | None] = self._connection.mget([_key(name) for name in hashes])
        return contents


def _key(name: str) -> str:
    return f"fumehood:blob:{name}"


class FileBlobs(Blobs):
    """A store in a file system that fsspec knows: a directory or a bucket. Fumehood removes nothing there."""

    def __init__(self, url: str) -> None:
        super().__init__()
        from fsspec.core import url_to_fs

        try:
            self._files, self._top = url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise BadRequest(f"{url} can't be a store: {error}", hint="file:///DIRECTORY, or s3://BUCKET") from error
        self._is_local = "file" in self._files.protocol

    def _path(self, name: str) -> str:
        return f"{self._top}/{name[:2]}/{name}"

    def missing(self, hashes: Sequence[str]) -> set[str]:
        """Return the hashes whose contents are not there."""
        if len(hashes) > _BATCH_ITEMS and not self._is_local:  # one request for a thousand names
            stored = {os.path.basename(path) for path in self._files.find(self._top)}
            return set(hashes) - stored
        return {name for name in hashes if not self._files.exists(self._path(name))}

    def _put(self, packed: Mapping[str, bytes]) -> None:
        if not self._is_local:
            self._files.pipe({self._path(name): data for name, data in packed.items()})
            return
        for name, data in packed.items():
            path = self._path(name)
            self._files.makedirs(os.path.dirname(path), exist_ok=True)
            temporary = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
            self._files.pipe_file(temporary, data)
            os.rename(temporary, path)

    def _get(self, hashes: Sequence[str]) -> Sequence[bytes | None]:
        whole = [None] * len(hashes)  # the ranges: whole files, without a request for the size of each
        contents = self._files.cat_ranges([self._path(name) for name in hashes], whole, whole, on_error="return")
        return [each if isinstance(each, bytes) else None for each in contents]


def open_blobs(url: str, connection: Redis) -> Blobs:
    """Open the store at an address; without an address, it is in Redis."""
    return FileBlobs(url) if url else RedisBlobs(connection)
