"""The acting half of recovery. Every step may be interrupted and done again; none touches what was not proven away."""

from __future__ import annotations

from topics.format.manifest import Manifest, encode_manifest
from topics.host.fs import Fs, parent, read_exact, replace_file, write_all
from topics.storage.judge import TopicFiles
from topics.storage.partfile import folder_of, make_folder
from topics.storage.paths import Paths, is_group, topic_of, wal_name
from topics.storage.recovery import Found
from topics.storage.walfile import discard
from topics.storage.walread import GroupRead

_COPY = 1024 * 1024


def repair(fs: Fs, paths: Paths, found: Found, salvage: bool) -> None:
    set_aside(fs, paths, found, salvage)
    for group in found.groups:
        repair_wal(fs, group, found.clean)
    for files in found.files:
        repair_topic(fs, files)
    if not found.clean:
        for topic_id in found.staged:
            keep_staged(fs, paths.topic(topic_id))
    remove_dropped(fs, paths, found, salvage)
    remove_leftovers(fs, paths)


# -- quarantine --------------------------------------------------------------------------------------------------------


def set_aside(fs: Fs, paths: Paths, found: Found, salvage: bool) -> None:
    """Bad snapshots and foreign WAL groups move to quarantine before anything else happens; so do copies of what
    salvage read past."""
    moves = [(path, path.rsplit("/", 1)[1]) for path, _ in found.bad_snapshots]
    for key in found.foreign_groups:
        directory = paths.group(key)
        prefix = key or "wal"
        moves += [(f"{directory}/{name}", f"{prefix}-{name}") for name in fs.list(directory) if name.endswith(".log")]
    damaged = [read.wal.path for group in found.groups for read in group.files if read.damaged]
    if not moves and not damaged:
        return
    ensure_dir(fs, paths.quarantine)
    for source, name in moves:
        fs.rename(source, _free_name(fs, paths, name))
    for path in damaged:
        copy_file(fs, path, _free_name(fs, paths, path.rsplit("/", 1)[1]))
    fs.sync_dir(paths.quarantine)
    for directory in sorted({source.rsplit("/", 1)[0] for source, _ in moves}):
        fs.sync_dir(directory)


def _free_name(fs: Fs, paths: Paths, name: str) -> str:
    """Nothing set aside before is overwritten."""
    candidate = f"{paths.quarantine}/{name}"
    number = 1
    while fs.exists(candidate):
        candidate = f"{paths.quarantine}/{name}.{number}"
        number += 1
    return candidate


def copy_file(fs: Fs, source: str, target: str) -> None:
    reading = fs.open(source)
    writing = fs.open(target, write=True, create=True, exclusive=True)
    size = reading.size()
    for offset in range(0, size, _COPY):
        write_all(writing, offset, [read_exact(reading, offset, min(_COPY, size - offset))])
    writing.sync()


def ensure_dir(fs: Fs, path: str) -> None:
    """The directory and every one above it, each name durable before anything is put inside.

    The name is synced also where the directory is there already: a life that was killed between making and syncing it
    left a directory that everybody sees and the next power cut takes away.
    """
    above = parent(path)
    if not fs.is_dir(path):
        if not fs.is_dir(above):
            ensure_dir(fs, above)
        fs.mkdir(path)
    fs.sync_dir(above)


# -- the WAL -----------------------------------------------------------------------------------------------------------


def repair_wal(fs: Fs, group: GroupRead, clean: bool) -> None:
    """Cut each file behind its last whole submission and make what stays durable.

    The valid bytes are written again first: a sync that failed in an earlier life may have left them in the page
    cache alone, marked clean, and then no sync would ever take them to the disk.
    """
    for number in group.empty:
        file = fs.open(f"{group.directory}/{wal_name(number)}", write=True)
        if file.size():
            file.truncate(0)
            file.sync()
    if clean or not group.files:
        return
    for read in group.files:
        file = read.wal.file
        last = read is group.files[-1]
        if last and not read.damaged:
            for offset in range(read.start, read.wal.written, _COPY):
                end = min(offset + _COPY, read.wal.written)
                write_all(file, offset, [bytes(read.view[offset:end])])
        if last and read.size > read.wal.written and not read.damaged:
            file.truncate(read.wal.written)
        if last:
            file.sync()


# -- topics ------------------------------------------------------------------------------------------------------------


def repair_topic(fs: Fs, files: TopicFiles) -> None:
    """MANIFEST first: once it does not name a file, that file may go; once it names a pair active, the pair may be
    cut to the length that the snapshot trusts."""
    topic = files.topic
    directory = topic.directory
    if files.rewrite_manifest:
        manifest = Manifest(topic.id, [segment.entry() for segment in topic.segments])
        replace_file(fs, f"{directory}/MANIFEST", encode_manifest(manifest))
    if topic.segments and not topic.segments[-1].sealed:
        active = topic.segments[-1]
        data = fs.open(active.path("data"), write=True)
        if data.size() > active.data_len:
            data.truncate(active.data_len)
            data.sync()
        if not fs.exists(active.path("idx")):
            fs.open(active.path("idx"), write=True, create=True)
    for name in files.unlisted:
        discard(fs, f"{directory}/{name}")
    if files.went and fs.is_dir(directory):
        # Its files may be gone for this life alone, and be back after a power cut, with what was wrong with them.
        fs.sync_dir(directory)
    folder = folder_of(directory)
    if fs.is_dir(folder):
        for name in fs.list(folder):
            if name.endswith(".tmp"):
                discard(fs, f"{folder}/{name}")


def keep_staged(fs: Fs, directory: str) -> None:
    """Make the names of staged parts durable: a life that was killed right behind a rename left a part that everybody
    sees, that a commit may name, and that the next power cut takes away."""
    make_folder(fs, directory)
    fs.sync_dir(folder_of(directory))


def remove_dropped(fs: Fs, paths: Paths, found: Found, salvage: bool) -> None:
    """Directories of topics whose TopicDelete is in the log go; one that nobody explains is left where it is, and in
    salvage set aside."""
    if not fs.is_dir(paths.topics):
        return
    for name in fs.list(paths.topics):
        if name.endswith(".deleted"):
            remove_tree(fs, f"{paths.topics}/{name}")
            continue
        topic_id = topic_of(name)
        if topic_id is None or topic_id in found.recovered.topics:
            continue
        # What lies there is another topic's: no new one may move in, or be taken for it.
        found.recovered.next_topic_id = max(found.recovered.next_topic_id, topic_id + 1)
        if topic_id in found.recovered.ended:
            bury(fs, paths, topic_id)
        elif salvage:
            ensure_dir(fs, paths.quarantine)
            fs.rename(f"{paths.topics}/{name}", _free_name(fs, paths, f"topic-{name}"))
            fs.sync_dir(paths.quarantine)
            fs.sync_dir(paths.topics)
            found.report.append(f"the directory of the unknown topic {name} was set aside")
        else:
            found.report.append(f"{paths.topics}/{name} belongs to no known topic and was left alone")


def bury(fs: Fs, paths: Paths, topic_id: int) -> None:
    """Remove a dropped topic's files: first its name, durably, then what was in it."""
    directory = paths.topic(topic_id)
    if not fs.is_dir(directory):
        return
    grave = f"{directory}.deleted"
    if fs.is_dir(grave):
        remove_tree(fs, grave)
    fs.rename(directory, grave)
    fs.sync_dir(paths.topics)
    remove_tree(fs, grave)


def remove_tree(fs: Fs, path: str) -> None:
    for name in fs.list(path):
        child = f"{path}/{name}"
        if fs.is_dir(child):
            remove_tree(fs, child)
        else:
            fs.remove(child)
    fs.rmdir(path)


def remove_leftovers(fs: Fs, paths: Paths) -> None:
    """Unfinished files of an interrupted life."""
    places = [paths.meta, paths.wal]
    places += [f"{paths.wal}/{name}" for name in fs.list(paths.wal) if is_group(name)]
    for place in places:
        for name in fs.list(place):
            if name.endswith((".tmp", ".pre")):
                discard(fs, f"{place}/{name}")


def make_directories(fs: Fs, paths: Paths) -> None:
    """One sync for all three, also where they are there already: see `ensure_dir`."""
    for path in (paths.meta, paths.wal):
        if not fs.is_dir(path):
            fs.mkdir(path)
    ensure_dir(fs, paths.topics)
