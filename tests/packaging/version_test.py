#!/usr/bin/env python3
"""tools/version in trees of every kind: with tags, without, without git, unpacked inside another repository."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
               **{f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER")
                  for what, value in (("NAME", "a"), ("EMAIL", "a@example.org"), ("DATE", "1700000000 +0000"))}}


class Version(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.outer = pathlib.Path(folder.name).resolve()
        self.tree = self.outer / "tree"
        (self.tree / "tools").mkdir(parents=True)
        shutil.copy(ROOT / "tools/version", self.tree / "tools")

    def git(self, *words, folder=None):
        subprocess.run(["git", *words], cwd=folder or self.tree, env=ENVIRONMENT, check=True, capture_output=True)

    def commit(self):
        self.git("commit", "--allow-empty", "-m", "x")

    def version(self, *words):
        return subprocess.run([self.tree / "tools/version", *words], env=ENVIRONMENT, capture_output=True, text=True, check=False)

    def said(self, *words):
        done = self.version(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_tags_state_it(self):
        self.git("init", "-q")
        self.commit()
        self.assertRegex(self.said(), r"^0\.1\.0\+1\.g[0-9a-f]{9}$")  # before the first tag
        self.git("tag", "v1.2.3")
        self.assertEqual((self.said(), self.said("--number"), self.said("--epoch")), ("1.2.3", "1.2.3", "1700000000"))
        self.commit()
        self.commit()
        self.git("tag", "other-1")  # no version's tag
        self.assertRegex(self.said(), r"^1\.2\.3\+2\.g[0-9a-f]{9}$")
        self.assertEqual(self.said("--number"), "1.2.3")

    def test_a_wrong_tag_is_refused(self):
        self.git("init", "-q")
        self.commit()
        self.git("tag", "v1.2")
        done = self.version()
        self.assertEqual(done.returncode, 1)
        self.assertIn("'1.2'", done.stderr)

    def test_an_archive_has_a_file(self):
        (self.tree / "VERSION").write_text("2.0.1+5.gabcdef012\n1600000000\n")
        self.assertEqual((self.said(), self.said("--number"), self.said("--epoch")), ("2.0.1+5.gabcdef012", "2.0.1", "1600000000"))

    def test_another_repository_around_it_states_nothing(self):
        self.git("init", "-q", folder=self.outer)
        self.git("commit", "--allow-empty", "-m", "x", folder=self.outer)
        self.git("tag", "v9.9.9", folder=self.outer)
        self.assertEqual((self.said(), self.said("--epoch")), ("0.1.0", "315532800"))

    def test_a_header_is_written_once(self):
        header = self.outer / "version.h"
        self.version("--header", header)
        self.assertEqual(header.read_text(), '#define ESPALIER_BUILD_VERSION "0.1.0"\n')
        os.utime(header, (1, 1))
        self.version("--header", header)
        self.assertEqual(header.stat().st_mtime, 1)  # unchanged, so nothing is compiled anew
        (self.tree / "VERSION").write_text("0.2.0\n1\n")
        self.version("--header", header)
        self.assertIn('"0.2.0"', header.read_text())


if __name__ == "__main__":
    unittest.main()
