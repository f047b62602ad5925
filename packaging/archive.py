"""Archives that are the same bytes for the same files: sorted, owned by root, at one time, without the name and time
in gzip's header. The time is SOURCE_DATE_EPOCH, else that of the commit (tools/version --epoch)."""
import gzip
import hashlib
import os
import pathlib
import subprocess
import tarfile

from bundle import ROOT, fail


def source_date_epoch():
    """Seconds; the time of every file in an archive."""
    stated = os.environ.get("SOURCE_DATE_EPOCH")
    if stated is None:
        return int(subprocess.run([ROOT / "tools/version", "--epoch"], capture_output=True, text=True, check=True).stdout)
    if not stated.isdigit():
        fail(f"SOURCE_DATE_EPOCH is '{stated}', but must be a number of seconds")
    return int(stated)


def mode_of(path):
    """The mode of an entry: 755 for folders and programs, 644 for other files, whatever the umask of the
    packaging process."""
    return 0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644


def add_tree(archive, folder, prefix, epoch, owned=None):
    """Adds what lies in `folder` under the name `prefix`, sorted; "" is the archive's root. `owned` has the mode and
    the user's number of names that are not root's."""
    for path in sorted([folder, *folder.rglob("*")], key=lambda p: p.as_posix()):
        name = (pathlib.PurePosixPath(prefix) / path.relative_to(folder).as_posix()).as_posix()
        if name == ".":
            continue
        entry = archive.gettarinfo(path, name)
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch, 0, 0, "root", "root"
        if entry.issym():
            archive.addfile(entry)
            continue
        entry.mode = mode_of(path)
        if name in (owned or {}):
            entry.mode, entry.uid = owned[name]
            entry.gid, entry.uname, entry.gname = entry.uid, "", ""
        if entry.islnk():  # a second name of one file; the archive holds it again
            entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", path.stat().st_size
        if entry.isreg():
            with path.open("rb") as data:
                archive.addfile(entry, data)
        else:
            archive.addfile(entry)


def write_tar_gz(folder, file, prefix, epoch, level=6, owned=None):
    """`folder` as FILE.tar.gz, as add_tree() adds it; gives the digest of the archive before compression."""
    digest = hashlib.sha256()

    class Digested:
        """What tarfile writes to: the compressor, behind a digest."""
        def __init__(self, out):
            self.out = out

        def write(self, data):
            digest.update(data)
            return self.out.write(data)

    with file.open("wb") as raw, gzip.GzipFile("", "wb", level, raw, mtime=0) as out, \
            tarfile.open(fileobj=Digested(out), mode="w|", format=tarfile.GNU_FORMAT) as archive:
        add_tree(archive, folder, prefix, epoch, owned)
    return digest.hexdigest()


def write_gz(file, data):
    """A text of documentation, compressed as Debian's policy asks."""
    with file.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
        out.write(data)
