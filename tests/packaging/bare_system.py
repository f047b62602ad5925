#!/usr/bin/env python3
"""Packages on a bare system: installed, started, asked, upgraded and purged in a root folder that holds a distribution's
required packages and apt alone (mmdebstrap --variant=minbase), with times. An image brings its own root: its layers are
unpacked over each other and its command runs as its user, as in a container.

  bare_system.py PACKAGE ...       .deb, .tar.gz, .whl and image .tar files, as tools/release makes them
  --suite NAME --mirror URL        the distribution (default bookworm of deb.debian.org; noble of archive.ubuntu.com)
  --components LIST                of the distribution (default main; main,universe for a wheel on Ubuntu, for Python's venv)
  --root FILE.tar                  a root made before (mmdebstrap --variant=minbase --include=apt SUITE FILE.tar MIRROR)
  --port N                         where the server listens (default 23500)

Needs root's rights, mmdebstrap and the network (unless --root). Python's venv is installed first where a wheel needs it.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

# Each program gets a namespace of processes, which end with it, and /proc of them.
ENTER = ["/usr/bin/unshare", "--mount", "--pid", "--fork", "--kill-child"]
QUESTION = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
CHANGING = ("var/lib/dpkg", "var/lib/apt", "var/log", "var/cache/apt", "var/cache/debconf", "var/cache/ldconfig", "tmp", "proc", "dev", "root",
            "etc/ld.so.cache", "run")


class Root:
    """A system's files in a folder, and programs that run in it."""

    def __init__(self, folder, user="0:0"):
        self.folder, self.user = folder, user

    def command(self, *words):
        # The environment's PATH is that of the root's programs.
        inside = f'/usr/bin/mount -t proc proc "$0/proc" && exec /usr/sbin/chroot --userspec={self.user} "$0" "$@"'
        return [*ENTER, "/bin/sh", "-c", inside, str(self.folder), *map(str, words)]

    def run(self, *words):
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C", "HOME": "/root"}
        done = subprocess.run(self.command(*words), capture_output=True, text=True, env=environment, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, words))} failed in {self.folder}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def put(self, file):
        """Copies a package in; gives its name inside."""
        shutil.copy(file, self.folder / "tmp")
        return f"/tmp/{file.name}"

    def files(self):
        """All names but of what package managers write for themselves."""
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*")
                if not path.relative_to(self.folder).as_posix().startswith(CHANGING)}


def add_devices(root):
    (root.folder / "dev").mkdir(exist_ok=True)
    for device in ("null", "zero", "urandom", "random"):
        subprocess.run(["cp", "-a", f"/dev/{device}", root.folder / "dev"], check=True)


def first_answer(root, command, port, environment=None):
    """Seconds from the start of `command serve` to its first answer, whose text is returned too."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(root.command(command, "serve", "--port", port), stdout=log, stderr=log,
                                  env=environment or {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        try:
            while True:
                try:
                    request = urllib.request.Request(f"http://127.0.0.1:{port}/generate", json.dumps(QUESTION).encode(),
                                                     {"Content-Type": "application/json"})
                    with urllib.request.urlopen(request, timeout=60) as answer:
                        return time.monotonic() - began, json.load(answer)["text"]
                except (urllib.error.URLError, ConnectionError):
                    if server.poll() is not None or time.monotonic() - began > 120:
                        log.seek(0)
                        sys.exit(f"{command} serve does not answer:\n{log.read()}")
                    time.sleep(0.02)
        finally:
            server.send_signal(signal.SIGKILL)
            server.wait()


def older(package, folder):
    """The same package as an older version, whose conffile and documents differ."""
    tree = folder / "older"
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
    control = tree / "DEBIAN/control"
    lines = control.read_text().splitlines(keepends=True)
    control.write_text("".join("Version: 0.0.1\n" if line.startswith("Version:") else line for line in lines))
    (tree / "usr/share/doc/espalier/only_in_the_older").write_text("x")
    file = folder / "espalier_0.0.1.deb"
    subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "-b", tree, file], check=True, stdout=subprocess.DEVNULL)
    return file


def install(root, package):
    began = time.monotonic()
    root.run("apt-get", "install", "-y", "--no-install-recommends", root.put(package))
    return time.monotonic() - began


def try_deb(root, package, port):
    """Clean install, answer, purge without a trace; then an older version, a changed conffile and the upgrade."""
    before = root.files()
    seconds = install(root, package)
    report(package, seconds, *first_answer(root, "/usr/bin/espalier", port))
    version = root.run("espalier", "--version").split()[1]
    assert version == root.run("dpkg-query", "-W", "-f", "${Version}", "espalier"), version
    settings = root.folder / "etc/espalier/environment"
    assert settings.stat().st_mode & 0o777 == 0o600 and settings.stat().st_uid == 0
    cache = root.folder / "var/cache/private/espalier"  # what the service would have fetched
    cache.mkdir(parents=True)
    (cache / "model").write_text("x")
    root.run("apt-get", "purge", "-y", "espalier")
    (root.folder / "var/cache/private").rmdir()  # systemd's, not the package's
    left = {path for path in root.files() - before}
    assert not left, f"a purge leaves {sorted(left)}"

    with tempfile.TemporaryDirectory() as folder:
        install(root, older(package, pathlib.Path(folder)))
    settings.write_text("ESPALIER_LOG_LEVEL=info\n")
    install(root, package)
    assert settings.read_text() == "ESPALIER_LOG_LEVEL=info\n", "an upgrade replaced changed settings"
    assert not (root.folder / "usr/share/doc/espalier/only_in_the_older").exists()
    assert root.run("espalier", "--version").split()[1] == version
    root.run("apt-get", "remove", "-y", "espalier")
    assert settings.exists(), "a removal took the settings"
    root.run("apt-get", "purge", "-y", "espalier")
    assert not root.files() - before, sorted(root.files() - before)
    print(f"{package.name}: purge leaves nothing; an upgrade keeps changed settings and removes old files")


def try_tarball(root, package, port):
    began = time.monotonic()
    root.run("tar", "xzf", root.put(package), "-C", "/opt")
    command = next((root.folder / "opt").glob("espalier-*/bin/espalier")).relative_to(root.folder)
    report(package, time.monotonic() - began, *first_answer(root, f"/{command}", port))


def try_wheel(root, package, port):
    if not (root.folder / "usr/bin/python3").exists():
        root.run("apt-get", "update")
        root.run("apt-get", "install", "-y", "--no-install-recommends", "python3-venv")
    root.run("python3", "-m", "venv", "/opt/venv")
    began = time.monotonic()
    root.run("/opt/venv/bin/pip", "install", "--no-index", "--no-deps", root.put(package))
    report(package, time.monotonic() - began, *first_answer(root, "/opt/venv/bin/espalier", port))


def try_image(_, package, port):
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        layout, root = pathlib.Path(folder) / "layout", pathlib.Path(folder) / "root"
        for made in (layout, root):
            made.mkdir()
        subprocess.run(["tar", "xf", package, "-C", layout], check=True)

        def blob(named):
            return layout / "blobs" / named["digest"].replace(":", "/")
        manifest = json.loads(blob(json.loads((layout / "index.json").read_text())["manifests"][0]).read_text())
        for layer in manifest["layers"]:
            subprocess.run(["tar", "xzf", blob(layer), "-C", root], check=True)
        config = json.loads(blob(manifest["config"]).read_text())["config"]
        container = Root(root, config["User"])
        (root / "proc").mkdir(exist_ok=True)
        add_devices(container)
        assert config["Cmd"][0] == "serve", config
        report(package, time.monotonic() - began, *first_answer(
            container, config["Entrypoint"][0], port, dict(pair.split("=", 1) for pair in config["Env"])))


def report(package, installed, answered, text):
    assert text, "the answer is empty"
    print(f"{package.name}: {package.stat().st_size / 1e6:.1f} MB, installed in {installed:.1f} s, first answer {answered:.2f} s "
          f"after the start: {text!r}", flush=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("packages", nargs="+", type=pathlib.Path)
    parser.add_argument("--suite", default="bookworm")
    parser.add_argument("--mirror", default="http://deb.debian.org/debian")
    parser.add_argument("--components", default="main")
    parser.add_argument("--root", type=pathlib.Path)
    parser.add_argument("--port", type=int, default=23500)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bare_system: entering a root folder needs root's rights; run this with sudo")
    ways = {".deb": try_deb, ".gz": try_tarball, ".whl": try_wheel, ".tar": try_image}
    needs_root = any(package.suffix != ".tar" for package in options.packages)
    with tempfile.TemporaryDirectory() as folder:
        archive = options.root or pathlib.Path(folder) / "root.tar"
        if options.root is None and needs_root:
            subprocess.run(["mmdebstrap", "--variant=minbase", "--include=apt", f"--components={options.components}", options.suite, archive,
                            options.mirror], check=True)
        root = Root(pathlib.Path(folder) / "root")
        root.folder.mkdir()
        if needs_root:
            subprocess.run(["tar", "xf", archive, "-C", root.folder, "--exclude=./dev/*"], check=True)
            add_devices(root)
        if (root.folder / "etc/resolv.conf").parent.is_dir():
            shutil.copy("/etc/resolv.conf", root.folder / "etc/resolv.conf")
        for package in options.packages:
            ways[package.suffix](root, package, options.port)


if __name__ == "__main__":
    main()
