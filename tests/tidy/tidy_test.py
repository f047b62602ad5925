#!/usr/bin/env python3
"""Each check of tidy.py passes on a small tidy tree and fails on the same tree with one fault."""
import json
import os
import tempfile
import unittest

import tidy

TIDY_TREE = {
    "ARCHITECTURE.md": "| `base/` | basics | nothing |\n| `net/` | http | base |\n"
                       "| `apps/` | commands | any |\n",
    "tests/tidy/rooms.txt": "# rooms\nbase:\nnet: base\napps: *\n",
    "src/base/a.h": "// Doc: call f(x) first; then g().\n//   f(1);\nint f(int x);\n",
    "src/base/a.cc": '#include "base/a.h"\nint f(int x) { return x; }\n',
    "src/base/CMakeLists.txt": "espalier_room(base SOURCES a.cc)\n",
    "src/net/n.h": '#include "base/a.h"\n',
    "src/net/n.cc": '#include "net/n.h"\n// The value is x = 3; it stays so.\nint n;\n',
    "src/net/CMakeLists.txt": "espalier_room(net SOURCES n.cc DEPS base LIBS foo)\n",
    "src/apps/main.cc": '#include "net/n.h"\nint main() {}\n',
    "src/apps/CMakeLists.txt": "add_executable(espalier main.cc)\n",
    "tools/run.py": "#!/usr/bin/env python3\n# Says hello.\nprint('hello')\n",
    "cmake/EspalierDependencies.cmake": "find_package(fmt REQUIRED)\n",
    "tools/setup": "#!/usr/bin/env bash\npackages='libfmt-dev'\n",
}


class TidyTest(unittest.TestCase):
    def findings(self, check, changes):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**TIDY_TREE, **changes}.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as f:
                    f.write(text)
            return tidy.CHECKS[check](tidy.Tree(root))

    def assert_fails(self, check, changes, words):
        findings = self.findings(check, changes)
        self.assertEqual(len(findings), 1, findings)
        self.assertIn(words, findings[0])

    def test_a_tidy_tree_passes_every_check(self):
        for check in tidy.CHECKS:
            self.assertEqual(self.findings(check, {}), [], check)

    def test_layering_sees_an_include_upwards(self):
        self.assert_fails("layering", {"src/base/a.cc": '#include "net/n.h"\n'},
                          "src/base/a.cc:1: base may not include net")

    def test_layering_sees_an_include_in_a_test(self):
        self.assert_fails("layering", {"src/base/a_test.cc": '#include "net/n.h"\n'},
                          "base may not include net")

    def test_layering_sees_a_link_upwards(self):
        self.assert_fails("layering",
                          {"src/base/CMakeLists.txt": "espalier_room(base SOURCES a.cc DEPS net)\n"},
                          "base may not link net")

    def test_layering_sees_a_room_without_a_row(self):
        self.assert_fails("layering", {"src/cellar/x.cc": "int x;\n"}, "cellar has no row")

    def test_table_sees_a_row_that_differs(self):
        self.assert_fails("table", {"tests/tidy/rooms.txt": "base:\nnet:\napps: *\n"},
                          "ARCHITECTURE.md says net: ['base'], rooms.txt says []")

    def test_table_sees_a_missing_row(self):
        self.assert_fails("table", {"tests/tidy/rooms.txt": "base:\nnet: base\napps: *\nattic:\n"},
                          "attic")

    def test_cycles_sees_headers_in_a_circle(self):
        self.assert_fails("cycles", {"src/base/a.h": '#include "base/b.h"\n',
                                     "src/base/b.h": '#include "base/a.h"\n'}, "base/b.h")

    def test_cycles_sees_rooms_in_a_circle(self):
        self.assert_fails("cycles", {"src/base/c.cc": '#include "net/n.h"\n'}, "rooms include each other")

    def test_dead_files_sees_a_source_that_is_not_built(self):
        self.assert_fails("dead_files", {"src/base/old.cc": "int old;\n"}, "src/base/old.cc")

    def test_dead_files_sees_a_header_that_is_not_included(self):
        self.assert_fails("dead_files", {"src/base/old.h": "int old;\n"}, "src/base/old.h")

    def test_dead_files_sees_a_flag_taken_for_a_name(self):
        self.assert_fails("dead_files", {"--help/a.json": "{}", "--help/b.json": "{}"}, "--help")

    def test_dead_files_believes_the_compile_commands(self):
        with tempfile.TemporaryDirectory() as root:
            source = os.path.join(root, "src/base/made.cc")
            os.makedirs(os.path.dirname(source))
            with open(source, "w", encoding="utf-8") as f:
                f.write("int made;\n")
            with open(os.path.join(root, "compile_commands.json"), "w", encoding="utf-8") as f:
                json.dump([{"directory": root, "file": "src/base/made.cc"}], f)
            self.assertEqual(tidy.dead_files(tidy.Tree(root, root)), [])

    def test_commented_code_sees_code(self):
        for line in ("// f(1);", "  // int x = g(2, h(3));", "// if (a) {", "// return x;",
                     '// #include "base/a.h"', "// }", "#if 0", "// a.b->c(d);",
                     "// void f(int a) {", "// total += step;"):
            self.assert_fails("commented_code", {"src/base/a.cc": f"int y;\n{line}\n"}, "code")
        for line in ("# print(x)", "# import os", "# x = f(1)", "# for a in b:", "# def f(a):"):
            self.assert_fails("commented_code", {"tools/run.py": f"x = 1\n{line}\n"}, "code")

    def test_commented_code_leaves_prose_and_examples(self):
        prose = ("// Frees what is left (see push); then returns.\n//   auto x = f(1);\n"
                 "// for each lane: its tokens\n// n = 3; the rest is zero.\n"
                 "// if it is full, the caller waits;\n")
        self.assertEqual(self.findings("commented_code", {"src/base/a.cc": prose}), [])

    def test_file_length_sees_a_long_file(self):
        self.assert_fails("file_length", {"src/base/a.cc": "int f();\n" * 801}, "801 lines")
        self.assert_fails("file_length", {"tools/run.py": "x = 1\n" * 801}, "801 lines")
        self.assertEqual(self.findings("file_length", {"src/base/a.cc": "int f();\n" * 800}), [])

    def test_forbidden_words_sees_marks_and_machine_paths(self):
        for text in ("// TO" "DO: more\n", "// FIX" "ME\n", "// XX" "X\n", 'f("/wo' 'rk/x");\n',
                     'f("/ho' 'me/someone/x");\n'):
            self.assert_fails("forbidden_words", {"src/base/a.cc": text}, "src/base/a.cc:1")
        self.assert_fails("forbidden_words", {"README.md": "see /ro" "ot/x\n"}, "README.md:1")

    def test_dependencies_sees_a_library_that_is_not_installed(self):
        cmake = "cmake/EspalierDependencies.cmake"
        self.assert_fails("dependencies", {cmake: "find_package(spdlog REQUIRED)\n"}, "libspdlog-dev")
        self.assert_fails("dependencies", {cmake: "find_package(Novel REQUIRED)\n"}, "Novel")


if __name__ == "__main__":
    unittest.main()
