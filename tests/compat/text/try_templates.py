#!/usr/bin/env python3
"""Renders chat templates that lie on disk with jinja2, as transformers calls it, and with
`espalier template`; tells which are equal on every conversation, errors included.

    python tests/compat/text/try_templates.py build/release/espalier TEMPLATE.jinja ...
Each template renders conversations with and without tools, reasoning, system messages and parts, and
with the switches that models' cards name. Needs the packages of requirements.txt.
"""
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import jinja2
import make_template_goldens as goldens

goldens.NOW = None
SWITCHES = [{}, {"enable_thinking": False}, {"enable_thinking": True, "thinking": True},
            {"reasoning_effort": "high", "date_string": "26 Jul 2024"},
            {"builtin_tools": ["brave_search", "python"], "tools_in_user_message": False},
            {"model_identity": "You are Heron.", "custom_instructions": "Be brief."}]
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "abc123456",
          "content": "{\"sky\": \"grey\"}"}
CONVERSATIONS = dict(goldens.CONVERSATIONS)
CONVERSATIONS |= {
    "system": [{"role": "system", "content": " Be <kind> & brief. "},
               {"role": "user", "content": "Ça va?\n"}],
    "turns": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "one "},
              {"role": "user", "content": "2"}, {"role": "assistant", "content": "two"},
              {"role": "user", "content": "3"}],
    "reasoned": [{"role": "user", "content": "why?"},
                 {"role": "assistant", "content": "<think>\nhm\n</think>\n\nbecause",
                  "reasoning_content": "hm", "thinking": "hm"},
                 {"role": "user", "content": "and?"}],
    "call": [{"role": "user", "content": "Weather?"}, goldens.CALL, RESULT],
    "call_more": [{"role": "system", "content": "S"}, {"role": "user", "content": "Weather?"},
                  goldens.CALL | {"content": "Let me see."}, RESULT,
                  {"role": "assistant", "content": "Grey."}, {"role": "user", "content": "Thanks"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"},
                                           {"type": "text", "text": "b"}]}],
    "developer": [{"role": "developer", "content": "D"}, {"role": "user", "content": "x"}],
    "empty": [],
    "wrong_order": [{"role": "assistant", "content": "x"}, {"role": "assistant", "content": "y"}],
}


def environment():
    env = goldens.environment()
    from datetime import datetime
    env.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return env


def render(template, variables):
    try:
        return template.render(**variables), None
    except jinja2.exceptions.TemplateError as problem:
        return None, str(problem)
    except Exception as problem:  # what jinja2 lets through: TypeError and the like
        return None, f"({type(problem).__name__}) {problem}"


def ours(binary, path, variables):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(variables, file)
        file.flush()
        done = subprocess.run([binary, "template", "--chat-template", path, "--messages", file.name,
                               "--bos-token", variables["bos_token"], "--eos-token",
                               variables["eos_token"]], capture_output=True, check=False)
    return (done.stdout.decode() if done.returncode == 0 else None), done.stderr.decode()


def main():
    binary, env, total_bad = sys.argv[1], environment(), 0
    for path in sys.argv[2:]:
        try:
            template = env.from_string(Path(path).read_text())
        except jinja2.exceptions.TemplateError as problem:
            print(f"{path}: jinja2 refuses it: {problem}")
            continue
        count = bad = errors = 0
        for (name, messages), tools, switch in itertools.product(
                CONVERSATIONS.items(), [None, goldens.TOOLS], SWITCHES):
            if switch and name not in ("system", "reasoned", "call_more"):
                continue
            for generation in (True, False) if not switch else (True,):
                variables = {"messages": messages, "tools": tools, "documents": None,
                             "add_generation_prompt": generation, "bos_token": "<s>",
                             "eos_token": "</s>"} | switch
                expected, problem = render(template, json.loads(json.dumps(variables)))
                answer, message = ours(binary, path, variables)
                count += 1
                errors += expected is None
                same = answer == expected
                if same and expected is None and not problem.startswith("("):
                    same = problem in message
                if not same:
                    bad += 1
                    if bad == 1:
                        print("DIFFERENT", path, name, "tools" if tools else "", switch, generation,
                              "\n  ours     ", repr(answer)[:700], message[:300],
                              "\n  reference", repr(expected)[:700], problem)
        print(f"{path.rsplit('/', 1)[-1]}: {count} renderings ({errors} errors), {bad} different",
              flush=True)
        total_bad += bad
    sys.exit(1 if total_bad else 0)


main()
