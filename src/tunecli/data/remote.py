"""Files of a source, on this machine or behind a URL, unpacked as they are read.

URLs go to fsspec, which takes credentials and options from the environment (those of each cloud's
own tools, or `FSSPEC_S3_ENDPOINT_URL` and the like): a configuration file is no place for secrets.
"""

from __future__ import annotations

import glob
import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from ..errors import DataError, MissingDependencyError

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
"""fsspec's name of a compression by the end of a file's name."""

PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs",
    "abfss": "adlfs", "adl": "adlfs", "oci": "ocifs", "oss": "ossfs", "http": "aiohttp",
    "https": "aiohttp", "sftp": "paramiko", "ssh": "paramiko", "smb": "smbprotocol",
    "webhdfs": "requests", "hdfs": "pyarrow",
}  # fmt: skip
"""Package that reads a kind of URL."""

CHECKSUMS = ("md5Hash", "Content-MD5", "content_md5", "crc32c", "blob_id", "Digest", "ETag", "etag")
"""What file systems call a value that changes with the contents, the best first."""

EDGE = 2**16
"""Bytes at each end of a file that tell it from others where it is not to be read as a whole."""


@dataclass(frozen=True)
class DataFile:
    """A file to read rows from.

    Attributes:
        path: Path on this machine, or as the file system wants it.
        fs: fsspec's file system; `None` for a file of this machine.
    """

    path: str
    fs: Any = None

    def __str__(self) -> str:
        if self.fs is None:
            return self.path
        # What is signed into a URL is nobody's business.
        return str(self.fs.unstrip_protocol(self.path)).partition("?")[0]

    @property
    def name(self) -> str:
        """The last part of the path, without the end that says how it is compressed."""
        name = PurePosixPath(str(self)).name if self.fs is not None else Path(self.path).name
        return name.removesuffix(_suffix(name)) if _suffix(name) in COMPRESSED else name

    @property
    def suffix(self) -> str:
        """The end of the name that says what kind of file it is."""
        return _suffix(self.name)

    @property
    def stem(self) -> str:
        """The name without that end."""
        return self.name.removesuffix(self.suffix)

    @contextmanager
    def open(self, *, anywhere: bool = False) -> Iterator[BinaryIO]:
        """Open for reading bytes, unpacked.

        Args:
            anywhere: The reader jumps about, as in a Parquet file; else it goes from start to end.

        Raises:
            MissingDependencyError: The package that unpacks is not there.
        """
        from fsspec.compression import compr

        with self._raw(anywhere) as raw:
            end = _suffix(self.path if self.fs is None else str(self))
            if end not in COMPRESSED:
                yield raw
                return
            if COMPRESSED[end] not in compr:
                raise MissingDependencyError("zstandard", f"{self}: a {end} file")
            with compr[COMPRESSED[end]](raw, mode="rb") as unpacked:
                yield cast("BinaryIO", io.BufferedReader(unpacked, 2**18))

    @contextmanager
    def _raw(self, anywhere: bool) -> Iterator[BinaryIO]:
        if self.fs is None:
            with Path(self.path).open("rb") as file:
                yield file
            return
        # Over HTTP one request for everything, unless the reader jumps about: not every server
        # gives parts of a file.
        options = {"block_size": 0} if "http" in self.fs.protocol and not anywhere else {}
        with self.fs.open(self.path, "rb", **options) as file:
            # fsspec's own lines are slow.
            yield file if anywhere else cast("BinaryIO", io.BufferedReader(file, 2**20))

    def fingerprint(self) -> str:
        """Return a text that changes with the contents: a checksum of the store, or our own."""
        if self.fs is not None:
            info = self.fs.info(self.path)
            if known := next((f"{key} {info[key]}" for key in CHECKSUMS if info.get(key)), None):
                return known
        with self._raw(anywhere=False) as file:
            digest = hashlib.sha256()
            while data := file.read(2**20):
                digest.update(data)
        return digest.hexdigest()

    def sketch(self) -> str:
        """Return a text that changes with size, start or end of the contents; reads no more."""
        if self.fs is not None:
            info = self.fs.info(self.path)
            known = next((f"{key} {info[key]}" for key in CHECKSUMS if info.get(key)), None)
            return known or f"{self} {info.get('size')}"
        with Path(self.path).open("rb") as file:
            digest = hashlib.sha256(file.read(EDGE))
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - EDGE))
            digest.update(file.read(EDGE))
        return f"{size} {digest.hexdigest()}"


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix


def remote_files(url: str, data_files: list[str]) -> tuple[list[DataFile], bool]:
    """Find what a URL names: a file, a folder or a glob.

    Args:
        url: `s3://...`, `hf://datasets/...`, `https://...`, or whatever else fsspec knows.
        data_files: Files or globs inside the folder; empty for all.

    Returns:
        The files, in order, and whether the URL is a folder.

    Raises:
        DataError: Nothing is there, or the file system refuses.
        MissingDependencyError: The package for such URLs is not installed.
    """
    shown = url.partition("?")[0] if url.startswith("http") else url
    fs, path = _file_system(url, shown)
    web = "http" in fs.protocol
    try:
        if glob.has_magic(shown):
            return [DataFile(name, fs) for name in _matching(fs, path, shown)], False
        if fs.isfile(path) and not (web and path.endswith("/")):
            return [DataFile(path, fs)], False
        if not fs.isdir(path):
            raise DataError(f"{shown}: no such file or folder")
        base = path.rstrip("/")
        if data_files:
            names = [n for given in data_files for n in _matching(fs, f"{base}/{given}", given)]
        else:
            # A web page may link to anywhere.
            names = sorted(name for name in fs.find(path) if name.startswith(f"{base}/"))
            names = [n for n in names if "/." not in n[len(base) :]]
        return [DataFile(name, fs) for name in dict.fromkeys(names)], True
    except DataError:
        raise
    except Exception as error:
        raise reading_failed(shown, error) from error


def reading_failed(place: str, error: Exception) -> DataError:
    """Return the error for whatever a file system raised: each has exceptions of its own."""
    text = getattr(error, "strerror", None) or str(error)
    hint = ""
    if not isinstance(error, FileNotFoundError):
        hint = " (credentials are taken from the environment)"
    return DataError(f"{place}: cannot be read: {type(error).__name__}: {text}{hint}")


def _matching(fs: Any, pattern: str, shown: str) -> list[str]:
    found = sorted(str(name) for name in fs.glob(pattern) if not fs.isdir(name))
    if not found:
        raise DataError(f"{shown}: no file matches")
    return found


def _file_system(url: str, shown: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    kind = url.partition("://")[0].rpartition("::")[2]
    try:
        fs, path = url_to_fs(url)
    except ImportError as error:
        package = PACKAGES.get(kind, f"fsspec[{kind}]")
        raise MissingDependencyError(package, f"{shown}: reading {kind}://") from error
    except Exception as error:
        raise DataError(f"{shown}: {error}") from error
    return fs, path
