#!/usr/bin/env python3
"""The bill of materials of a build has the fields that SPDX 2.3 asks for, and names all that the command
links: sbom_test.py BUILD"""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.path.abspath(sys.argv.pop())


class Sbom(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = subprocess.run([os.path.join(ROOT, "tools", "sbom"), "--build", BUILD], capture_output=True, text=True, check=True,
                              env={**os.environ, "SOURCE_DATE_EPOCH": "0"})
        cls.bill = json.loads(made.stdout)

    def test_document(self):
        bill = self.bill
        self.assertEqual((bill["spdxVersion"], bill["dataLicense"], bill["SPDXID"]), ("SPDX-2.3", "CC0-1.0", "SPDXRef-DOCUMENT"))
        self.assertRegex(bill["documentNamespace"], r"^https?://[^#]+$")
        self.assertEqual(bill["creationInfo"]["created"], "1970-01-01T00:00:00Z")
        self.assertTrue(all(re.match("(Tool|Person|Organization): ", c) for c in bill["creationInfo"]["creators"]))

    def test_elements(self):
        elements = self.bill["packages"] + self.bill["files"]
        ids = [e["SPDXID"] for e in elements]
        self.assertEqual(len(ids), len(set(ids)))
        for name in ids:
            self.assertRegex(name, r"^SPDXRef-[A-Za-z0-9.-]+$")
        for package in self.bill["packages"]:
            for key in ("name", "versionInfo", "downloadLocation", "licenseConcluded", "copyrightText"):
                self.assertTrue(package[key], package)
            self.assertRegex(package["versionInfo"], r"\d", package["name"])
        for file in self.bill["files"]:
            self.assertEqual([(c["algorithm"], len(c["checksumValue"])) for c in file["checksums"]], [("SHA1", 40), ("SHA256", 64)])

    def test_relationships(self):
        known = {e["SPDXID"] for e in self.bill["packages"] + self.bill["files"]} | {"SPDXRef-DOCUMENT"}
        related = set()
        for relation in self.bill["relationships"]:
            self.assertIn(relation["spdxElementId"], known)
            self.assertIn(relation["relatedSpdxElement"], known)
            related |= {relation["spdxElementId"], relation["relatedSpdxElement"]}
        self.assertEqual(known, related)

    def test_names_what_is_linked(self):
        needed = subprocess.run(["readelf", "-d", os.path.join(BUILD, "espalier")], capture_output=True, text=True, check=True).stdout
        names = {p["name"] for p in self.bill["packages"]}
        libraries = {n for n in re.findall(r"NEEDED.*\[(.*?)\]", needed) if not n.startswith("ld-linux")}
        self.assertTrue(libraries)
        self.assertEqual(libraries - names, set())
        self.assertLessEqual({"espalier", "boost", "CLI11", "tl-expected"}, names)

    def test_names_the_models(self):
        folder = pathlib.Path(ROOT, "share")
        shipped = {f"./share/{path.relative_to(folder).as_posix()}" for path in folder.rglob("*") if path.is_file()}
        self.assertEqual({f["fileName"] for f in self.bill["files"]}, shipped)


if __name__ == "__main__":
    unittest.main()
