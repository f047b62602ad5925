#!/usr/bin/env python3
"""Parses answers with transformers' response templates; writes tests/golden/response_templates.json.

    python tests/compat/text/make_response_goldens.py tests/golden/response_templates.json
The templates are our own, one feature each. An answer has reasoning, text and calls in a row, in the
notation of its template; each case holds the prompt's end, the answer, and what it means: reasoning,
all texts in a row, and calls with the type of each argument as transformers gives it to the tools below."""
import json
import random
import sys

from transformers.utils.chat_parsing import ResponseParser

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "share": {"type": "number"},
    "now": {"type": "boolean"}, "list": {"type": "array"}, "any": {},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}}} for name in ("weather", "look-up")]
CALL = {"type": "function", "function": "{content}"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
TEXTS = ["Hello.", "a < b", "1. one\n2. two", "<tool", "São Paulo ✓", "{x}", "  spaced  out "]
VALUES = {"city": ["Paris", "São \"Paulo\"", "007"], "days": [3, -1], "share": [0.5, 2],
          "now": [True, False], "list": [[1, "a"], []], "any": ["x", 5], "maybe": ["y", None]}


def as_json(name, arguments):
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def plain(value):
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def tags(name, arguments):
    inner = "".join(f"\n<parameter={k}>\n{plain(v)}\n</parameter>" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>{inner}\n</function>\n</tool_call>"


def lines(name, arguments):
    return f"[{name}]" + "\n".join(f"{k} = {plain(v)}" for k, v in arguments.items()) + "[/]"


def quirky(name, arguments):
    values = (f"{k}:" + (f"<|\"|>{v}<|\"|>" if isinstance(v, str) else json.dumps(v))
              for k, v in arguments.items())
    return f"<|call>{name}{{{','.join(values)}}}<call|>"


def channel(name, arguments):
    return (f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
            f"{json.dumps(arguments)}<|call|>")


# The template, how it writes reasoning, text and one call, and ends of prompts.
KINDS = {
    "json": {
        "template": {
            "defaults": {"role": "assistant"}, "start_anchor": "<|im_start|>assistant\n",
            "fields": {"thinking": {"open": "<think>", "close": "</think>"},
                       "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "repeats": True,
                                      "content": "json", "transform": CALL},
                       "content": {"close": "<|im_end|>"}}},
        "thinking": "<think>\n{}\n</think>\n\n", "text": "{}\n", "end": "<|im_end|>",
        "call": lambda n, a: f"<tool_call>{as_json(n, a)}</tool_call>\n", "anchor": "<|im_start|>assistant\n"},
    "tags": {
        "template": {
            "start_anchor_pattern": r"<\|assistant\|>\s?",
            "fields": {"reasoning_content": {"open": ["<think>", "<thinking>"], "close_pattern": r"</think(?:ing)?>"},
                       "content": {},
                       "tool_calls": {
                           "open_pattern": r"<tool_call>\s*<function=(?P<name>[\w-]+)>", "close": "</tool_call>",
                           "repeats": True, "content": "xml-inline", "transform": NAMED,
                           "content_args": {"tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>"}}}},
        "thinking": "<thinking>{}</thinking>", "text": "{}", "end": "", "call": tags,
        "anchor": "<|assistant|>"},
    "tags_of_json": {
        "template": {
            "start_anchor": "<|assistant|>",
            "fields": {"content": {}, "tool_calls": {
                "open_pattern": r"<tool_call>\s*<function=(?P<name>[\w-]+)>", "close": "</tool_call>",
                "repeats": True, "content": "xml-inline", "transform": NAMED,
                "content_args": {"tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>",
                                 "value_parser": {"name": "json", "args": {"allow_non_json": True}}}}}},
        "thinking": None, "text": "{}", "end": "", "call": tags, "anchor": "<|assistant|>"},
    "lines": {
        "template": {
            "start_anchor": "A:",
            "fields": {"thinking": {"open": "((", "close": "))"}, "content": {"content_args": {"strip": False}},
                       "tool_calls": {"open_pattern": r"\[(?P<name>[\w-]+)\]", "close": "[/]", "repeats": True,
                                      "content": "kv-lines", "content_args": {"kv_sep": "="}, "transform": NAMED}}},
        "thinking": "(({}))", "text": "{}", "end": "", "call": lines, "anchor": "A:"},
    "quirks": {
        "template": {
            "start_anchor": "<|turn>model\n",
            "fields": {"thinking": {"open": "<|channel>thought\n", "close": "<channel|>"},
                       "content": {"close": "<turn|>"},
                       "tool_calls": {"open_pattern": r"<\|call>(?P<name>[\w-]+)", "close": "<call|>",
                                      "repeats": True, "content": "json", "transform": NAMED,
                                      "content_args": {"unquoted_keys": True,
                                                       "string_delims": [["<|\"|>", "<|\"|>"]]}}}},
        "thinking": "<|channel>thought\n{}<channel|>", "text": "{}", "end": "<turn|>", "call": quirky,
        "anchor": "<|turn>model\n"},
    "channels": {
        "template": {
            "start_anchor": "<|start|>assistant",
            "fields": {"thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
                       "content": {"open": "<|channel|>final<|message|>", "close": ["<|end|>", "<|return|>"]},
                       "tool_calls": {
                           "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>[\w-]+).*?<\|message\|>",
                           "close": "<|call|>", "repeats": True, "content": "json", "transform": NAMED}}},
        "thinking": "<|channel|>analysis<|message|>{}<|end|><|start|>assistant",
        "text": "<|channel|>final<|message|>{}<|return|>", "end": "", "call": channel,
        "anchor": "<|start|>assistant"},
    "list": {
        "template": {
            "start_anchor": "<|BOT|>",
            "fields": {"thinking": {"open": "<|THINK|>", "close": "<|/THINK|>"}, "content": {},
                       "tool_calls": {"open": "<|ACT|>", "close": "<|/ACT|>", "content": "json",
                                      "transform_each": True,
                                      "transform": {"type": "function", "function": {
                                          "name": "{tool}", "arguments": "{with.values}"}}}}},
        "thinking": "<|THINK|>{}<|/THINK|>", "text": "{}", "end": "", "anchor": "<|BOT|>",
        "calls": lambda calls: "<|ACT|>" + json.dumps([{"tool": n, "with": {"values": a}} for n, a in calls]) + "<|/ACT|>"},
}


def one(kind, rng):
    made = KINDS[kind]
    answer, prompt = "", "system text " + made["anchor"]
    if made["thinking"] and rng.random() < 0.6:
        written = made["thinking"].format(rng.choice(TEXTS))
        opening = made["template"]["fields"].get("thinking", {}).get("open")
        if isinstance(opening, str) and rng.random() < 0.3:  # the prompt begins the reasoning
            prompt += opening
            written = written[len(opening):]
        answer += written
    if rng.random() < 0.7:
        answer += made["text"].format(rng.choice(TEXTS))
    calls = [(rng.choice(["weather", "look-up"]),
              {k: rng.choice(VALUES[k]) for k in rng.sample(sorted(VALUES), rng.randint(0, 4))})
             for _ in range(rng.choice([0, 0, 1, 2]))]
    if calls:
        answer += made["calls"](calls) if "calls" in made else "".join(made["call"](*call) for call in calls)
    answer += made["end"]
    parser = ResponseParser(made["template"], prefix=prompt, tools=TOOLS)
    events = parser.feed(answer)
    message, last = parser.finalize()
    texts = [event["value"] for event in events + last
             if event["type"] == "region_close" and event["field"] == "content"]
    return {"prompt": prompt, "answer": answer,
            "reasoning": message.get("thinking") or message.get("reasoning_content") or "",
            "text": "".join(texts),
            "calls": [[call["function"]["name"], call["function"]["arguments"]]
                      for call in message.get("tool_calls") or []]}


def main():
    rng = random.Random(27)
    kinds = {kind: {"template": made["template"], "cases": [one(kind, rng) for _ in range(40)]}
             for kind, made in KINDS.items()}
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        json.dump({"tools": TOOLS, "kinds": kinds}, f, indent=1, ensure_ascii=False)
        f.write("\n")


if __name__ == "__main__":
    main()
