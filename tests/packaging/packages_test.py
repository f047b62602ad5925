#!/usr/bin/env python3
"""The packagers: the same build gives the same bytes, whatever the umask, folder and time of whoever packages; archives
hold what they should, and the packaged command runs without a library of the build folder.

  packages_test.py BUILD       skips (77) without patchelf, dpkg-deb or ldd's glibc
"""
import gzip
import hashlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "packaging"))
import archive  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop()).resolve()
EPOCH = "1700000000"


def digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


class Temporary(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class Archives(Temporary):
    def tree(self, name, order, mask):
        """Three files, made in an order and under a umask."""
        old = os.umask(mask)
        try:
            (self.folder / name / "b").mkdir(parents=True)
            for file in order:
                path = self.folder / name / file
                path.write_text(file)
                path.chmod(0o777 & ~mask if file == "run" else 0o666 & ~mask)
        finally:
            os.umask(old)
        (self.folder / name / "link").symlink_to("run")
        return self.folder / name

    def packed(self, tree, epoch=5):
        file = self.folder / f"{tree.name}.tar.gz"
        archive.write_tar_gz(tree, file, "x", epoch)
        return file

    def test_the_same_files_are_the_same_bytes(self):
        one = self.tree("one", ["run", "b/c", "a"], 0o022)
        other = self.tree("other", ["a", "run", "b/c"], 0o077)
        os.utime(other / "a", (1, 1))
        os.link(other / "a", self.folder / "elsewhere")  # a second name outside changes nothing
        self.assertEqual(self.packed(one).read_bytes(), self.packed(other).read_bytes())
        with tarfile.open(self.packed(one)) as tar:
            entries = {entry.name: entry for entry in tar}
        self.assertEqual(list(entries), ["x", "x/a", "x/b", "x/b/c", "x/link", "x/run"])
        self.assertEqual([entries[name].mode for name in ("x/a", "x/b", "x/run")], [0o644, 0o755, 0o755])
        self.assertEqual(entries["x/link"].linkname, "run")
        self.assertEqual({(e.uid, e.gid, e.uname, e.mtime) for e in entries.values()}, {(0, 0, "root", 5)})

    def test_what_differs_differs(self):
        one = self.tree("one", ["run", "b/c", "a"], 0o022)
        first = self.packed(one).read_bytes()
        self.assertNotEqual(self.packed(one, epoch=6).read_bytes(), first)
        (one / "a").chmod(0o755)
        changed = self.packed(one).read_bytes()
        self.assertNotEqual(changed, first)
        (one / "b/c").write_text("d")
        self.assertNotEqual(self.packed(one).read_bytes(), changed)

    def test_the_digest_is_that_of_the_tar(self):
        one = self.tree("one", ["a"], 0o022)
        file = self.folder / "one.tar.gz"
        self.assertEqual(archive.write_tar_gz(one, file, "", 5), hashlib.sha256(gzip.decompress(file.read_bytes())).hexdigest())


class Packages(Temporary):
    def made(self, tool, name, mask, *more):
        """The package that a tool makes with a umask, in a folder of its own."""
        output = self.folder / name
        subprocess.run([ROOT / "tools" / tool, "--build", BUILD, "--output", output, "--level", "0", *more], check=True, cwd=self.folder,
                       stdout=subprocess.DEVNULL, umask=mask, env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH, "HOME": str(output)})
        return next(output.iterdir())

    def test_two_debian_packages_are_the_same(self):
        one, other = self.made("deb", "one", 0o022), self.made("deb", "other", 0o077)
        self.assertEqual(digest(one), digest(other))
        names = subprocess.run(["dpkg-deb", "-c", one], capture_output=True, text=True, check=True).stdout
        for name in ("usr/bin/espalier", "usr/share/espalier/default_model/config.json", "usr/share/espalier/seeing_model/config.json",
                     "usr/share/man/man1/espalier.1.gz",
                     "usr/share/bash-completion/completions/espalier", "usr/share/zsh/vendor-completions/_espalier",
                     "usr/lib/systemd/system/espalier.service", "usr/share/doc/espalier/copyright",
                     "usr/share/doc/espalier/changelog.gz", "etc/espalier/environment"):
            self.assertRegex(names, rf"(?m)^-\S+ root/root .* \./{name.replace('.', '[.]')}$")
        tree = self.folder / "tree"
        subprocess.run(["dpkg-deb", "-R", one, tree], check=True)
        self.assertIn("ExecStart=/usr/bin/espalier serve", (tree / "usr/lib/systemd/system/espalier.service").read_text())
        self.assertEqual((tree / "DEBIAN/conffiles").read_text(), "/etc/espalier/environment\n")
        subprocess.run(["md5sum", "--quiet", "-c", "DEBIAN/md5sums"], cwd=tree, check=True)
        # Every setting that the conffile names is one of the command.
        known = subprocess.run([BUILD / "espalier", "serve", "--help"], capture_output=True, text=True, check=True).stdout
        for line in (tree / "etc/espalier/environment").read_text().splitlines():
            if line.startswith("#ESPALIER_"):
                self.assertIn("--" + line[10:].split("=")[0].lower().replace("_", "-"), known)

    def test_two_tarballs_are_the_same_and_run(self):
        one, other = self.made("tarball", "one", 0o022), self.made("tarball", "other", 0o077)
        self.assertEqual(digest(one), digest(other))
        with tarfile.open(fileobj=io.BytesIO(one.read_bytes())) as tar:
            tar.extractall(self.folder / "unpacked")
        command = next((self.folder / "unpacked").glob("espalier-*/bin/espalier"))
        libraries = subprocess.run(["ldd", command], capture_output=True, text=True, check=True).stdout
        self.assertIn("libstdc++", libraries)
        for line in libraries.splitlines():
            if "=>" in line and not any(system in line for system in ("libc.so", "libm.so", "libgcc_s", "ld-linux")):
                self.assertIn(str(command.parent.parent / "lib"), os.path.normpath(line.split("=> ")[1].split(" (")[0]))
        answer = subprocess.run([command, "generate", "Once upon a time", "--max-new-tokens", "4", "--quiet"], capture_output=True,
                                text=True, check=True, cwd=self.folder, env={"PATH": "/usr/bin:/bin"})
        self.assertTrue(answer.stdout.strip())

    def test_two_images_are_the_same_and_whole(self):
        base = self.folder / "base"  # as small as a base may be
        for name in ("usr/share/ca-certificates/a.crt", "usr/lib/libc.so.6", "usr/bin/sh", "usr/share/doc/libc6/copyright",
                     "usr/share/doc/libc6/changelog.gz"):
            (base / name).parent.mkdir(parents=True, exist_ok=True)
            (base / name).write_text(name)
        (base / "etc").mkdir()
        with tarfile.open(self.folder / "base.tar", "w") as tar:
            tar.add(base, ".")
        root = ["--root", self.folder / "base.tar"]
        one, other = self.made("image", "one", 0o022, *root), self.made("image", "other", 0o077, *root)
        self.assertEqual(digest(one), digest(other))
        with tarfile.open(one) as tar:
            blobs = {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}
        for name, data in blobs.items():
            if name.startswith("blobs/"):
                self.assertEqual(name, f"blobs/sha256/{hashlib.sha256(data).hexdigest()}")

        def blob(descriptor):
            data = blobs[descriptor["digest"].replace("sha256:", "blobs/sha256/")]
            self.assertEqual(len(data), descriptor["size"])
            return data

        manifest = json.loads(blob(json.loads(blobs["index.json"])["manifests"][0]))
        config = json.loads(blob(manifest["config"]))
        layers = [gzip.decompress(blob(layer)) for layer in manifest["layers"]]
        self.assertEqual(config["rootfs"]["diff_ids"], [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers])
        self.assertEqual(config["config"]["User"], "65532:65532")
        entries = {e.name: e for layer in layers for e in tarfile.open(fileobj=io.BytesIO(layer))}
        self.assertIn(config["config"]["Entrypoint"][0].lstrip("/"), entries)
        self.assertEqual((entries["var/cache/espalier"].uid, entries["tmp"].mode), (65532, 0o1777))
        self.assertIn("usr/share/doc/libc6/copyright", entries)
        self.assertEqual({"usr/bin/sh", "usr/share/doc/libc6/changelog.gz"} & entries.keys(), set())


if __name__ == "__main__":
    if not all(shutil.which(tool) for tool in ("patchelf", "dpkg-deb", "ldd")):
        print("skipped: patchelf, dpkg-deb or ldd is missing (tools/setup installs patchelf)")
        sys.exit(77)
    unittest.main()
