#!/usr/bin/env python3
"""packaging/espalier.service keeps its protections, and its command line is one that the command takes:
service_test.py BINARY. Where systemd-analyze is installed it judges the unit too."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
UNIT = os.path.join(ROOT, "packaging", "espalier.service")
BINARY = os.path.abspath(sys.argv.pop())
EXPOSURE_MAX = 25  # tenths, as systemd-analyze counts them: "2.5 OK"
WANTED = {
    "DynamicUser": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes", "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "", "MemoryDenyWriteExecute": "yes", "RestrictNamespaces": "yes", "SystemCallArchitectures": "native",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX", "LimitCORE": "0",
}


def settings():
    """(key, value) of the unit's lines."""
    with open(UNIT, encoding="utf-8") as f:
        return re.findall(r"^(\w+)=(.*)$", f.read(), re.MULTILINE)


class Service(unittest.TestCase):
    def test_keeps_its_protections(self):
        found = dict(settings())
        self.assertEqual({key: found.get(key) for key in WANTED}, WANTED)
        filters = [value for key, value in settings() if key == "SystemCallFilter"]
        self.assertEqual(filters[0], "@system-service")
        self.assertTrue(filters[1].startswith("~@privileged"))

    def test_starts_with_flags_that_exist(self):
        command = dict(settings())["ExecStart"].split()
        self.assertEqual(command[1], "serve")
        known = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True, check=True).stdout
        for flag in [word for word in command if word.startswith("--")]:
            self.assertRegex(known, rf"(?<![\w-]){flag}(?![\w-])")

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
    def test_systemd_takes_it(self):
        with tempfile.TemporaryDirectory() as folder:
            unit = os.path.join(folder, "espalier.service")
            with open(UNIT, encoding="utf-8") as f, open(unit, "w", encoding="utf-8") as out:
                out.write(f.read().replace("/usr/local/bin/espalier", BINARY))
            verified = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
            # Other units of the machine are none of this one's.
            self.assertEqual([line for line in verified.stderr.splitlines() if "espalier" in line], [])
            judged = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--no-pager", f"--threshold={EXPOSURE_MAX}", unit],
                                    capture_output=True, text=True, check=False)
            self.assertEqual(judged.returncode, 0, judged.stdout[-600:] + judged.stderr)


if __name__ == "__main__":
    unittest.main()
