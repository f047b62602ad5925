"""What the packages share: the shared libraries that a built file needs, copied beside it under names of their
own and found through its run path. tools/wheel, tools/tarball, tools/deb and tools/image use it.

Needs patchelf, and ldd, strip and objdump of the build's own system. A failure ends the program with the words
of the command that failed."""
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Part of every system with glibc. libstdc++ is not: packages hold their own.
SYSTEM_LIBRARIES = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|util|gcc_s)\.so\.\d+)$")


def fail(message):
    """Ends the program: the message behind the name of the tool that runs."""
    sys.exit(f"tools/{pathlib.Path(sys.argv[0]).name}: {message}")


def run(*command, **more):
    """The output of a command; ends the program with its words when it fails."""
    try:
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, **more)
    except FileNotFoundError:
        fail(f"{command[0]} is missing; tools/setup --packages installs what packages need")
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def needed(file):
    """The names of the libraries that a file names itself."""
    return run("patchelf", "--print-needed", file).split()


def library_folders(file):
    """{name: file} of the shared libraries that the loader finds for a file."""
    lines = run("ldd", file).splitlines()
    pairs = (re.match(r"\s*(\S+) => (/\S+)", line) for line in lines)
    return {pair[1]: pathlib.Path(pair[2]) for pair in pairs if pair}


def add_libraries(folder, sources, places):
    """Copies every library that the built files `sources` need into `folder`, but for those of the system and
    Espalier's own, under a name with a digest, so that a library of the same name elsewhere in the process
    (Python's OpenSSL) is not mixed with it. `places` has a run path for each list of the files that use them;
    these and the copies are stripped. Gives {old name: original}."""
    originals, renamed = {}, {}
    for source in sources:
        for name, path in library_folders(source).items():
            if not SYSTEM_LIBRARIES.match(name) and not name.startswith("libespalier"):
                originals[name] = path
    for name, path in originals.items():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        renamed[name] = name.replace(".so", f"-{digest}.so", 1)
        copy = folder / renamed[name]
        shutil.copy(path.resolve(), copy)
        copy.chmod(0o755)
    for rpath, files in [("$ORIGIN", sorted(folder.glob("*.so*"))), *places.items()]:
        for file in files:
            run("strip", "--strip-unneeded", file)  # before patchelf: it does not know its sections
            if file.name in renamed.values():
                run("patchelf", "--set-soname", file.name, file)
            for old in needed(file):  # one at a time: patchelf before 0.15 makes only the last change
                if old in renamed:
                    run("patchelf", "--replace-needed", old, renamed[old], file)
            run("patchelf", "--set-rpath", rpath, file)
    return originals


def check_closed(folder, files):
    """Each library that `files` and the libraries in `folder` need is in `folder` or is the system's."""
    there = {file.name for file in folder.glob("*")}
    for file in [*folder.glob("*.so*"), *files]:
        missing = [n for n in needed(file) if n not in there and not SYSTEM_LIBRARIES.match(n)]
        if missing:
            fail(f"{file.name} needs {', '.join(missing)}, which the package lacks")


def glibc_version(files, most=None):
    """The latest symbol version of glibc that one of the files needs, (2, 36), and that file's name. With `most`
    ("2.36") a later one ends the program."""
    latest = ((2, 17), "no file")
    for file in files:
        for found in re.findall(r"GLIBC_(\d+)\.(\d+)", run("objdump", "-T", file)):
            latest = max(latest, (tuple(map(int, found)), file.name))
    (major, minor), name = latest
    if most and (major, minor) > tuple(map(int, most.split("."))):
        fail(f"{name} needs GLIBC_{major}.{minor}, above {most}; build on an older system, as Debian 12")
    return latest


def licences(originals):
    """{package: its copyright file} of the packages that bundled libraries come from, where dpkg knows them."""
    found = {}
    if not shutil.which("dpkg-query"):
        return found
    for path in originals.values():
        for file in (path, path.resolve(), pathlib.Path("/usr") / path.relative_to("/")):
            owner = subprocess.run(["dpkg-query", "-S", str(file)], capture_output=True, text=True, check=False)
            if owner.returncode == 0:
                name = owner.stdout.split(":")[0].strip()
                source = pathlib.Path("/usr/share/doc") / name / "copyright"
                if source.is_file():
                    found[name] = source
                break
    return dict(sorted(found.items()))


def copy_licences(originals, folder):
    """Espalier's licence and those of bundled libraries, as files of `folder`."""
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "LICENSE", folder / "LICENSE")
    for name, source in licences(originals).items():
        shutil.copy(source, folder / f"{name}.txt")
