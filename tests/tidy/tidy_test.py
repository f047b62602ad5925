#!/usr/bin/env python3
"""Each check of tidy.py passes on a small tidy tree and fails on the same tree with one fault."""
import json
import os
import re
import tempfile
import unittest

import tidy
import words

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
    "tests/tidy/words.txt": "pending: attic\nsrc docs | \\btells?\\b | reported\nnet attic | \\blanes?\\b | entry\n",
    "src/net/README.md": "Reads `n.h`; see [the map](../../ARCHITECTURE.md).\n",
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

    def test_dead_files_reads_the_units_of_the_compile_commands(self):
        with tempfile.TemporaryDirectory() as root:
            for name, text in (("src/base/made.cc", "int made;\n"),
                               ("src/base/old.cc", "int old;\n"),
                               ("build/units/base_0.cc", '#include "base/made.cc"\n')):
                os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
                with open(os.path.join(root, name), "w", encoding="utf-8") as f:
                    f.write(text)
            with open(os.path.join(root, "compile_commands.json"), "w", encoding="utf-8") as f:
                json.dump([{"directory": root, "file": "build/units/base_0.cc"}], f)
            tree = tidy.Tree(root, root)
            tree.files = [name for name in tree.files if name.startswith("src/")]
            self.assertEqual(tidy.dead_files(tree), ["src/base/old.cc: no target builds it"])

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

    def test_standard_words_sees_words_in_comments_names_and_errors(self):
        for line in ("// It tells why.", "int num_lanes;", "struct LanePlan;", 'f("no lane is free");'):
            self.assert_fails("standard_words", {"src/net/n.cc": f"int y;\n{line}\n"}, "src/net/n.cc:2")
        self.assert_fails("standard_words", {"README.md": "It tells.\n"}, "README.md:1")

    def test_standard_words_keeps_to_its_rooms_and_to_whole_words(self):
        for path, text in (("src/base/a.cc", "int lane;\n"), ("src/net/n.cc", "int planes, teller;\n"),
                           ("src/attic/a.cc", "int lane;  // It tells.\n"),
                           ("src/net/n_test.cc", 'f("Tell me a story");\n')):
            self.assertEqual(self.findings("standard_words", {path: text}), [])

    def test_word_counts_show_pending_rooms_too(self):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**TIDY_TREE, "src/attic/a.cc": "int lane;\n"}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                    f.write(text)
            counts = list(tidy.word_counts(tidy.Tree(root)))
        self.assertIn("attic (pending): 1 of", counts[0])
        self.assertEqual(counts[-1], "all: 1")

    def test_every_row_of_the_words_can_fail(self):
        with open(os.path.join(os.path.dirname(__file__), "words.txt"), encoding="utf-8") as f:
            rows, _ = words.read_rows(f.read())
        self.assertGreater(len(rows), 35)
        for source, (sample, fine) in WORD_SAMPLES.items():
            row = [r for r in rows if r.source == source]
            self.assertTrue(row, f"no row of words.txt is {source}")
            self.assertTrue(row[0].pattern.search(words.CAMEL.sub("_", sample)), (source, sample))
            self.assertFalse(row[0].pattern.search(words.CAMEL.sub("_", fine)), (source, fine))
        self.assertEqual({r.source for r in rows}, set(WORD_SAMPLES))

    def test_kernel_headers_sees_a_long_head_comment(self):
        for lines, findings in ((15, 0), (16, 1)):
            text = "// A line.\n" * lines + "#pragma once\n// Another.\n"
            self.assertEqual(len(self.findings("kernel_headers", {"src/kernels/k.h": text})), findings)

    def test_readme_length_sees_a_long_readme(self):
        self.assert_fails("readme_length", {"src/net/README.md": "line\n" * 61}, "61 lines")
        self.assertEqual(self.findings("readme_length", {"src/net/README.md": "line\n" * 60}), [])

    def test_cited_files_sees_what_does_not_exist(self):
        for path, text, name in (("README.md", "See [it](docs/gone.md#part).\n", "docs/gone.md"),
                                 ("README.md", "`tools/absent` does it.\n", "tools/absent"),
                                 ("src/net/n.cc", "int n;  // as in base/gone.h\n", "base/gone.h"),
                                 ("src/net/n.cc", "// See gone_too.cc.\n", "gone_too.cc"),
                                 ("README.md", "`base/gone_ISA.h`\n", "base/gone_ISA.h"),
                                 ("README.md", "`NAME.cu` is a kernel.\n", "NAME.cu")):
            self.assert_fails("cited_files", {path: text}, name)
        text = "[a](https://x.org/y.md) [b](#part) `base/a.h` `base/NAME.h` `*_test.cc` [c](src/net/)\n"
        self.assertEqual(self.findings("cited_files", {"README.md": text}), [])

    def test_limits_sees_what_is_too_long_or_has_grown(self):
        body = "".join(f"  f({i});\n" for i in range(70))
        long = f"int g() {{\n{body}}}\n"
        self.assert_fails("limits", {"src/net/n.cc": long}, "g has 72 lines (70 at most)")
        for value, findings in ((71, 1), (72, 0)):
            found = self.findings("limits", {"src/net/n.cc": long,
                                             "tests/tidy/limits.txt": f"# head\nnet lines g {value}\n"})
            self.assertEqual(len(found), findings)


# For each expression of words.txt: what it must find, and what it must not.
WORD_SAMPLES = {
    r"(?<!espalier:)\blanes?\b": ("num_lanes", "espalier:lanes_total, planes"),
    r"(?<!std::)\bpromis(?:e|es|ed)\b": ("kPromised", "compromise"),
    r"\bdeferrals?\b": ("a deferral", "deferred"),
    r"(?<!schedule_max_)\bovert(?:ake|akes|aken|ook|aking)\b": ("max_overtakes", "schedule_max_overtakes, overt"),
    r"\blinger(?:s|ed|ing)?\b": ("linger_steps", "malingering"),
    r"\bset(?:s|ting)? aside\b": ("it is set aside", "settings"),
    r"\bheld\b": ("held_pages", "withheld"),
    r"\b(?:a|the|its|each|that|one|of)[ _]places?\b": ("at a place", "in place"),
    r"\bshared[ _]runs?\b": ("SharedRun", "shared prefix"),
    r"\bguess(?:es|ed|ing)?\b": ("num_guesses", "guest"),
    r'(?<!")\bdrafts\b(?! \d)': ("the drafts", "draft tokens"),
    r"\b(?:loud|quiet)\b(?!_na)": ("a loud node", "cloud"),
    r"\b(?:news|hears?|heard)\b": ("take_news", "newspaper"),
    r"\b(?:tells?|told)\b": ("It tells why", "teller"),
    r"\bsays? so\b": ("and says so", "says something"),
    r"\blast[_ ]words\b": ("last_words.h", "last word"),
    r"\bmachines?\b(?![ _](?:code|stack|learning))": ("this machine has", "machine code"),
    r"\blayer[_ ]?stack\b": ("LayerStack", "stacked layers"),
    r"(?<!inner_)\bproducts?\b": ("matrix products", "production"),
    r"\bcopy engines?\b": ("the copy engine", "copies"),
    r"\bsecond-level cache\b": ("the second-level cache", "L2"),
    r"\bearly[_ ]launch(?:es)?\b": ("early_launch", "launched early"),
    r"\bpieces?\b": ("in pieces", "centrepiece"),
    r"\bring\b(?![ _]buffer)": ("a ring of stages", "ring buffer, string"),
    r"\b(?:num[_ ]units|units of work|unit of work)\b": ("num_units", "units of time"),
    r"\bnum[_ ]parts\b": ("num_parts", "parts"),
    r"\bnew[_ ]k\b": ("new_k", "new keys"),
    r"\basked for\b": ("what was asked for", "requested"),
    r"\bexperts[_ ]few\b": ("experts_few", "few experts"),
    r"\bchoices?\b": ("num_choices", "choose"),
    r"\bmass(?:es)?\b": ("the masses", "massive"),
    r"\bholdings?\b": ("Holding", "holds"),
    r"\bdecoder[_ ]?faults?\b": ("DecoderFaults", "decoder"),
    r"\bstate[_ ]?sets?\b": ("StateSet", "state settings"),
    r"\blinks?\b(?!_libraries)": ("a link", "blinking"),
    r"\bways?[_ ]on\b": ("ways_on", "one-way"),
    r"\blikeness\b": ("Likeness", "likely"),
    r"\bopposites?\b": ("the opposite", "oppose"),
}


if __name__ == "__main__":
    unittest.main()
