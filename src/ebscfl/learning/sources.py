"""Finding, fetching and verifying the files of a data set.

Local copies are looked for in ``data_dir`` (the argument), then in ``$EBSCFL_DATA``, then in a per-user cache, each
time in a folder named after the data set and then in the folder itself. MNIST and Fashion-MNIST files have the same
names: one that carries the checksum of the other set is passed over, one that carries nobody's is corrupt. A fetch
writes ``<file>.part``, resumes it by an HTTP range, and renames it only after its checksum holds.
"""

from __future__ import annotations

import difflib
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ebscfl.errors import DataError, UsageError
from ebscfl.learning.registry import SOURCES, Source, SourceFile

ENVIRONMENT_VARIABLE = "EBSCFL_DATA"
EMBEDDED = "mnist-mini"
NAMES: tuple[str, ...] = (EMBEDDED, *SOURCES)
CHUNK = 1 << 18
TIMEOUT_S = 30.0

Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes so far, bytes in all or None)."""
Opener = Callable[[urllib.request.Request], Any]
"""Opens a request as `urllib.request.urlopen` does."""


@dataclass(frozen=True)
class FileStatus:
    """What is known about one file."""

    name: str
    state: str  # "ok" | "present" (not checked) | "missing" | "corrupt"
    path: Path | None = None


@dataclass(frozen=True)
class DataStatus:
    """Whether a data set can be loaded, and from where."""

    name: str
    title: str
    license: str
    state: str  # "embedded" | "ok" | "present" (not checked) | "missing" | "corrupt"
    files: tuple[FileStatus, ...]
    download_bytes: int
    note: str = ""  # one line: what is wrong and what to do

    @property
    def usable(self) -> bool:
        """Whether `load_dataset` has what it needs, as far as was checked."""
        return self.state in ("embedded", "ok", "present")


def get_source(name: str, registry: Mapping[str, Source] = SOURCES) -> Source:
    """The registered source called ``name``."""
    if name not in registry:
        near = difflib.get_close_matches(name, (EMBEDDED, *registry), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"unknown data set {name!r} (known: {', '.join((EMBEDDED, *registry))}){hint}")
    return registry[name]


def cache_folder() -> Path:
    """The per-user folder that `fetch` fills when nothing else is said."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore a relative path.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "ebscfl"


def search_folders(name: str, data_dir: Path | None = None) -> tuple[Path, ...]:
    """Where files of ``name`` are looked for, in order."""
    environment = os.environ.get(ENVIRONMENT_VARIABLE, "")
    bases = [*([Path(data_dir)] if data_dir else []), *([Path(environment)] if environment else []), cache_folder()]
    return tuple(folder for base in bases for folder in (base / name, base))


def fix_command(name: str) -> str:
    """The command that brings a data set."""
    return f"`ebs-cfl data fetch {name}`"


def locate(name: str, data_dir: Path | None = None, registry: Mapping[str, Source] = SOURCES) -> dict[str, Path]:
    """Checked paths of one complete layout of ``name`` and of its extras, by file name.

    Raises:
        DataError: no layout is complete, or a file on the way is corrupt.
    """
    source = get_source(name, registry)
    folders = search_folders(name, data_dir)
    for layout in (source.files, *source.alternatives):
        found = {file.name: _find(source, file, folders, registry) for file in layout}
        if None not in found.values():
            found |= {file.name: _find(source, file, folders, registry) for file in source.extras}
            return {file_name: path for file_name, path in found.items() if path is not None}
    places = ", ".join(str(folder) for folder in folders[1::2])
    absent = next(file.name for file in source.files if _find(source, file, folders, registry) is None)
    pickled = next(
        (folder / entry for entry in source.pickled for folder in folders if (folder / entry).exists()), None
    )
    hint = f" ({pickled} is there, but the python version is pickled and never read)" if pickled else ""
    raise DataError(f"{name}: {absent} was not found in {places}{hint}; run {fix_command(name)}")


def verify(name: str, data_dir: Path | None = None, registry: Mapping[str, Source] = SOURCES) -> DataStatus:
    """Checks sizes and checksums of the local files of ``name``; never raises for what it finds."""
    return _status(name, data_dir, registry, full=True)


def list_datasets(data_dir: Path | None = None, registry: Mapping[str, Source] = SOURCES) -> tuple[DataStatus, ...]:
    """The state of every known data set, by presence alone (quick)."""
    return tuple(_status(name, data_dir, registry, full=False) for name in (EMBEDDED, *registry))


def fetch(
    name: str,
    data_dir: Path | None = None,
    *,
    progress: Progress | None = None,
    opener: Opener | None = None,
    registry: Mapping[str, Source] = SOURCES,
) -> DataStatus:
    """Brings the canonical files of ``name`` that are not there yet, and says what is there afterwards.

    They go to a folder called ``name`` in ``data_dir``, else in ``$EBSCFL_DATA``, else in the cache. A file that
    exists but is corrupt is replaced. Extras whose addresses all fail are named in the note and are no error.
    """
    if name == EMBEDDED:
        return _status(name, data_dir, registry, full=True)
    source = get_source(name, registry)
    before = verify(name, data_dir, registry)
    folders = search_folders(name, data_dir)
    good = {file.name for file in before.files if file.state == "ok"}
    if before.state != "ok":
        for file in source.files:
            if file.name not in good:
                fetch_file(file, folders[0], progress=progress, opener=opener)
    failed = []
    for file in source.extras:
        if file.urls and file.name not in good:
            try:
                fetch_file(file, folders[0], progress=progress, opener=opener)
            except DataError as error:
                failed.append(str(error))
    after = verify(name, data_dir, registry)
    return replace(after, note="; ".join(failed)) if failed and not after.note else after


def fetch_file(
    file: SourceFile, folder: Path, *, progress: Progress | None = None, opener: Opener | None = None
) -> Path:
    """Downloads one file into ``folder``, trying its addresses in turn.

    A broken transfer leaves ``<file>.part``, which the next attempt resumes; a wrong checksum leaves nothing, and a
    file that was there before stays until a good one replaces it.
    """
    target = folder / file.name
    part = target.with_name(target.name + ".part")
    problems = []
    for url in file.urls:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _download(url, file, part, progress, opener or _urlopen)
            problem = _mismatch(part, file)
            if problem is None:
                os.replace(part, target)
                return target
            part.unlink()
            problems.append(f"{url}: {problem}")
        except (OSError, http.client.HTTPException) as error:
            problems.append(f"{url}: {getattr(error, 'reason', None) or error or type(error).__name__}")
    raise DataError(f"{file.name} could not be fetched ({'; '.join(problems) or 'it has no address'}); try again later")


def _urlopen(request: urllib.request.Request) -> Any:
    return urllib.request.urlopen(request, timeout=TIMEOUT_S)


def _download(url: str, file: SourceFile, part: Path, progress: Progress | None, opener: Opener) -> None:
    """Completes ``part``; raises `OSError` or `HTTPException` when the transfer breaks."""
    start = part.stat().st_size if part.exists() else 0
    if file.size is not None and start >= file.size:
        if start == file.size:
            return  # complete already: only the checksum was still to come
        start = 0
    headers = {"User-Agent": "ebs-cfl"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = opener(urllib.request.Request(url, headers=headers))
    except urllib.error.HTTPError as error:
        error.close()
        if start and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink()  # the rest we ask for does not exist: what we hold is not a piece of this file
            return _download(url, file, part, progress, opener)
        raise
    with response:
        resumed = start > 0 and response.status == http.HTTPStatus.PARTIAL_CONTENT
        if resumed and not str(response.headers.get("Content-Range", "")).startswith(f"bytes {start}-"):
            raise OSError("the server resumed at another place than asked")
        done = start if resumed else 0
        with part.open("ab" if resumed else "wb") as out:
            while chunk := response.read(CHUNK):
                out.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(file.name, done, file.size)
                if file.size is not None and done > file.size:
                    return  # not our file; the size check says so
            out.flush()
            os.fsync(out.fileno())
    if file.size is not None and done < file.size:
        raise OSError(f"the transfer broke off at {done} of {file.size} bytes; run the same command to resume")


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as stream:
        # md5 is what the publishers give; it guards against broken transfers, https against tampering.
        return hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def _mismatch(path: Path, file: SourceFile) -> str | None:
    """Why ``path`` is not ``file``, or None if it is."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"it has {size} bytes instead of {file.size}"
    if file.checksum is not None:
        algorithm, expected = file.checksum.split(":")
        if _digest(path, algorithm) != expected:
            return f"its {algorithm} checksum is wrong"
    return None


def _belongs_elsewhere(path: Path, source: Source, name: str, registry: Mapping[str, Source]) -> bool:
    """Whether ``path`` is the good file of the same name of another data set."""
    return any(
        file.name == name and file.checksum is not None and _mismatch(path, file) is None
        for other in registry.values()
        if other.name != source.name
        for file in other.files
    )


def _find(source: Source, file: SourceFile, folders: tuple[Path, ...], registry: Mapping[str, Source]) -> Path | None:
    for folder in folders:
        path = folder / file.name
        if not path.is_file():
            continue
        try:
            problem = _mismatch(path, file)
            if problem is None:
                return path
            if _belongs_elsewhere(path, source, file.name, registry):
                continue
        except OSError as error:
            raise DataError(
                f"{path} cannot be read ({error.strerror}); check it or set {ENVIRONMENT_VARIABLE}"
            ) from None
        raise DataError(f"{path} is corrupt ({problem}); run {fix_command(source.name)}")
    return None


def _status(name: str, data_dir: Path | None, registry: Mapping[str, Source], *, full: bool) -> DataStatus:
    if name == EMBEDDED:
        title = "MNIST subset, 10 000 + 2 000, part of this package"
        return DataStatus(name, title, SOURCES["mnist"].license, "embedded", (), 0)
    source = get_source(name, registry)
    folders = search_folders(name, data_dir)
    size = sum(file.size or 0 for file in source.files)
    best: tuple[FileStatus, ...] = ()
    note = f"run {fix_command(name)}"
    state = "missing"
    for layout in (source.files, *source.alternatives):
        files, problem = _file_states(source, layout, folders, registry, full)
        states = {file.state for file in files}
        best = best or files
        if states <= {"ok", "present"}:
            extras, note = _file_states(source, source.extras, folders, registry, full)
            state, best = ("ok" if full else "present"), files + tuple(f for f in extras if f.state != "missing")
            break
        if "corrupt" in states and state == "missing":
            state, best, note = "corrupt", files, problem
    return DataStatus(name, source.title, source.license, state, best, size, note)


def _file_states(
    source: Source,
    layout: tuple[SourceFile, ...],
    folders: tuple[Path, ...],
    registry: Mapping[str, Source],
    full: bool,
) -> tuple[tuple[FileStatus, ...], str]:
    """The state of each file of a layout, and what is wrong with the corrupt ones in one line."""
    states, problems = [], []
    for file in layout:
        present = next((folder / file.name for folder in folders if (folder / file.name).is_file()), None)
        if not full and present is not None and (file.size is None or present.stat().st_size == file.size):
            states.append(FileStatus(file.name, "present", present))
            continue
        try:
            path = _find(source, file, folders, registry)
        except DataError as error:
            problems.append(str(error))
            states.append(FileStatus(file.name, "corrupt", present))
        else:
            states.append(FileStatus(file.name, "ok" if path else "missing", path))
    return tuple(states), "; ".join(problems)
