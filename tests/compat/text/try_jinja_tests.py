#!/usr/bin/env python3
"""Renders the templates of jinja2's own tests as transformers' environment does and with `espalier
template`; tells which are equal, errors included.

    git clone https://github.com/pallets/jinja && cd jinja
    PYTHONPATH=.../tests/compat/text JINJA_CASES=/tmp/cases.json python -m pytest -p try_jinja_tests tests
    python tests/compat/text/try_jinja_tests.py build/release/espalier /tmp/cases.json
The first run records each template that a test renders, with its variables where JSON can hold
them. Those that inherit, import or include are left out. Needs the packages of requirements.txt,
pytest and trio.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jinja2

CASES = []
INHERITANCE = ("{% include", "{% import", "{% extends", "{% block", "{% from", "{% trans")


def pytest_configure():
    from_string, render = jinja2.Environment.from_string, jinja2.Template.render

    def recorded_from_string(self, source, *args, **named):
        template = from_string(self, source, *args, **named)
        if isinstance(source, str):
            template.recorded_source = source
        return template

    def recorded_render(self, *args, **named):
        try:
            if source := getattr(self, "recorded_source", None):
                CASES.append((source, json.loads(json.dumps(dict(*args, **named)))))
        except (TypeError, ValueError):
            pass
        return render(self, *args, **named)
    jinja2.Environment.from_string = recorded_from_string
    jinja2.Template.render = recorded_render


def pytest_sessionfinish():
    Path(os.environ["JINJA_CASES"]).write_text(json.dumps(CASES))


def main():
    import make_template_goldens as goldens
    goldens.NOW = None
    binary, env, count, errors, bad = sys.argv[1], goldens.environment(), 0, 0, 0
    common = {"messages": [], "tools": None, "documents": None, "add_generation_prompt": True,
              "bos_token": "", "eos_token": ""}
    unique = {json.dumps(case): case for case in json.loads(Path(sys.argv[2]).read_text())}
    with tempfile.TemporaryDirectory() as folder:
        template, messages = Path(folder) / "template.jinja", Path(folder) / "messages.json"
        for source, variables in unique.values():
            if any(word in source for word in INHERITANCE):
                continue
            variables = common | variables
            try:
                expected, problem = env.from_string(source).render(**variables), ""
            except Exception as error:
                expected, problem, errors = None, repr(error), errors + 1
            template.write_text(source)
            messages.write_text(json.dumps(variables))
            done = subprocess.run([binary, "template", "--chat-template", template, "--messages",
                                   messages], capture_output=True, check=False)
            answer = done.stdout.decode() if done.returncode == 0 else None
            count += 1
            if answer != expected:
                bad += 1
                print("DIFFERENT", repr(source)[:300], "\n  ours     ", repr(answer)[:300],
                      done.stderr.decode()[:200].strip(), "\n  reference", repr(expected)[:300], problem)
    print(f"{count} templates ({errors} errors), {bad} different")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
