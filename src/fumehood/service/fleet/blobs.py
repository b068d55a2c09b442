"""Where contents wait between sender and workers, by their hashes: a directory or a bucket by fsspec, or Redis itself.

Each is compressed. What is fetched is compared with its name, so a store can lose something, but not change it.
"""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING

from fumehood.errors import BadRequest, FumehoodError
from fumehood.service.fleet.jobs import KEPT_S, digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from redis import Redis

LARGEST = 512 << 20  # bytes of one file
_LARGEST_IN_REDIS = 32 << 20  # compressed
_AT_ONCE = 8 << 20  # bytes that are asked for in one go
_MOST_AT_ONCE = 500


class Missing(FumehoodError):
    """A content that a job needs is not in the store, or is damaged there."""


class Blobs:
    """What every store does; `sent` and `fetched` count the bytes."""

    def __init__(self) -> None:
        self.sent = self.fetched = 0

    def missing(self, names: Sequence[str]) -> set[str]:
        """Return those that are not in the store; those that are will stay for a while."""
        raise NotImplementedError

    def _put(self, packed: Mapping[str, bytes]) -> None:
        raise NotImplementedError

    def _get(self, names: Sequence[str]) -> Sequence[bytes | None]:
        raise NotImplementedError

    def put(self, *contents: bytes) -> list[str]:
        """Keep contents; returns their names."""
        return list(self.put_all(contents))

    def put_all(self, contents: Iterable[bytes]) -> Iterator[str]:
        """Keep contents, some at once; yields their names."""
        some: dict[str, bytes] = {}
        for data in contents:
            name = digest(data)
            some[name] = zlib.compress(data, 1)
            yield name
            if len(some) == _MOST_AT_ONCE or sum(map(len, some.values())) > _AT_ONCE:
                self._flush(some)
                some = {}
        self._flush(some)

    def _flush(self, some: Mapping[str, bytes]) -> None:
        if some:
            self._put(some)
            self.sent += sum(map(len, some.values()))

    def get(self, sizes: Iterable[tuple[str, int]]) -> Iterator[tuple[str, bytes]]:
        """Fetch contents by their names, each with the most bytes that it can have, some at once."""
        some: list[tuple[str, int]] = []
        for each in sizes:
            if some and (sum(size for _, size in some) + each[1] > _AT_ONCE or len(some) == _MOST_AT_ONCE):
                yield from self._some(some)
                some = []
            some.append(each)
        if some:
            yield from self._some(some)

    def _some(self, sizes: Sequence[tuple[str, int]]) -> Iterator[tuple[str, bytes]]:
        for (name, size), packed in zip(sizes, self._get([name for name, _ in sizes]), strict=True):
            if packed is None:
                raise Missing(f"{name} is not in the store", hint="send the job again")
            self.fetched += len(packed)
            try:
                data = zlib.decompressobj().decompress(packed, size + 1)  # no more than was announced
            except zlib.error as error:
                raise Missing(f"{name} is damaged in the store: {error}") from error
            if len(data) > size or digest(data) != name:
                raise Missing(f"{name} is damaged in the store", hint="remove it there, and send the job again")
            yield name, data


class RedisBlobs(Blobs):
    """In Redis itself, for projects that are small; what nobody asks for is gone after a week."""

    def __init__(self, connection: Redis) -> None:
        super().__init__()
        self._connection = connection

    def missing(self, names: Sequence[str]) -> set[str]:
        """Return those that are not there; those that are stay for another week."""
        lacking: set[str] = set()
        for start in range(0, len(names), _MOST_AT_ONCE):
            some = names[start : start + _MOST_AT_ONCE]
            with self._connection.pipeline(transaction=False) as pipeline:
                for name in some:
                    pipeline.expire(_key(name), KEPT_S)
                lacking |= {name for name, is_there in zip(some, pipeline.execute(), strict=True) if not is_there}
        return lacking

    def _put(self, packed: Mapping[str, bytes]) -> None:
        largest = max(map(len, packed.values()))
        if largest > _LARGEST_IN_REDIS:
            raise BadRequest(
                f"{largest >> 20} MiB are too much for Redis", hint="--store names a directory or bucket for all"
            )
        with self._connection.pipeline(transaction=False) as pipeline:
            for name, data in packed.items():
                pipeline.set(_key(name), data, ex=KEPT_S)
            pipeline.execute()

    def _get(self, names: Sequence[str]) -> Sequence[bytes | None]:
        contents: list[bytes | None] = self._connection.mget([_key(name) for name in names])
        return contents


def _key(name: str) -> str:
    return f"fumehood:blob:{name}"


class FileBlobs(Blobs):
    """In a file system that fsspec knows: a directory, a bucket. Nothing is removed there by us."""

    def __init__(self, url: str) -> None:
        super().__init__()
        from fsspec.core import url_to_fs

        try:
            self._files, self._top = url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise BadRequest(f"{url} can't be a store: {error}", hint="file:///DIRECTORY, or s3://BUCKET") from error
        self._is_here = "file" in self._files.protocol

    def _place(self, name: str) -> str:
        return f"{self._top}/{name[:2]}/{name}"

    def missing(self, names: Sequence[str]) -> set[str]:
        """Return those that are not there."""
        if len(names) > _MOST_AT_ONCE and not self._is_here:  # one request for a thousand names
            there = {os.path.basename(path) for path in self._files.find(self._top)}
            return set(names) - there
        return {name for name in names if not self._files.exists(self._place(name))}

    def _put(self, packed: Mapping[str, bytes]) -> None:
        if not self._is_here:
            self._files.pipe({self._place(name): data for name, data in packed.items()})
            return
        for name, data in packed.items():
            place = self._place(name)
            self._files.makedirs(os.path.dirname(place), exist_ok=True)
            beside = f"{place}.{os.getpid()}-{os.urandom(4).hex()}"
            self._files.pipe_file(beside, data)
            os.rename(beside, place)

    def _get(self, names: Sequence[str]) -> Sequence[bytes | None]:
        nothing = [None] * len(names)  # whole files, and no request besides for each
        contents = self._files.cat_ranges([self._place(name) for name in names], nothing, nothing, on_error="return")
        return [each if isinstance(each, bytes) else None for each in contents]


def opened(url: str, connection: Redis) -> Blobs:
    """Open the store that an address names: without one, Redis."""
    return FileBlobs(url) if url else RedisBlobs(connection)
