#!/usr/bin/env python3
"""Renders templates with jinja2 as transformers' apply_chat_template does; writes goldens.

    python tests/compat/text/make_template_goldens.py tests/golden/templates
The templates are our own, in the style of popular models' (families) or one feature each (edges).
Each case holds the variables and the output, or "error" where rendering raises.
"""
import json
import sys
from datetime import datetime
from pathlib import Path

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime(2024, 7, 26, 9, 5, 7)


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather at a <place> & \"time\"",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Which city, e.g. Zürich"},
        "days": {"type": "integer", "enum": [1, 2, 3]}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "stop", "description": "",
                                      "parameters": {"type": "object", "properties": {}}}}]
CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "abc123456", "type": "function",
     "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}}]}
CONVERSATIONS = {
    "one": [{"role": "user", "content": "Hello\n there "}],
    "system": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi"},
               {"role": "assistant", "content": "Hello 👋"}, {"role": "user", "content": "日本?"}],
    "tools": [{"role": "system", "content": "You help."}, {"role": "user", "content": "Weather?"},
              CALL, {"role": "tool", "name": "get_weather", "tool_call_id": "abc123456",
                     "content": "{\"t\": 21.5}"}],
    "thinking": [{"role": "user", "content": "2+2"},
                 {"role": "assistant", "content": "<think>\nfour\n</think>\n\n4"},
                 {"role": "user", "content": "3+3"},
                 {"role": "assistant", "reasoning_content": "six!", "content": "6"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "Look:"}, {"type": "image"},
                                           {"type": "text", "text": " what?"}]}],
    "wrong": [{"role": "assistant", "content": "I begin"}, {"role": "user", "content": "no"}],
}


def chats(**extra):
    cases = []
    for name, messages in CONVERSATIONS.items():
        for generate in (True, False):
            variables = {"messages": messages, "add_generation_prompt": generate,
                         "bos_token": "<s>", "eos_token": "</s>"}
            if name == "tools":
                variables["tools"] = TOOLS
            variables.update(extra)
            cases.append(variables)
    return cases


FAMILIES = {}

FAMILIES["chatml"] = """\
{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""

FAMILIES["llama3_tools"] = """\
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message is taken out, so that it can be put into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "You may call these functions:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

FAMILIES["qwen_thinking"] = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

FAMILIES["mistral_tools"] = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and tools is defined and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

FAMILIES["gemma_parts"] = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""

FAMILIES["deepseek_flags"] = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' in message %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}{%- if message['content'] is none %}{{'<｜Assistant｜><｜calls｜>' + tool['type'] + '<｜sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments']|tojson + '\\n' + '```'}}{%- else %}{{message['content'] + tool['type']}}{%- endif %}{%- set ns.is_first = true -%}{%- else %}{{'\\n' + tool['function']['name']}}{%- endif %}{%- endfor %}{{'<｜end｜>'}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' not in message %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end｜>'}}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<｜outputs｜>' + message['content']}}{%- set ns.is_output_first = false %}{%- else %}{{'\\n' + message['content']}}{%- endif %}{%- endif %}{%- endfor -%}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\\n'}}{% endif %}"""

FAMILIES["phi_generation"] = """\
{% for message in messages %}
{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}
{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>' }}{% generation %}{{ message.get('content', '') or 'none' }}<|end|>{% endgeneration %}

{% else %}
{{ '<|' + message['role'] + '|>' + (message['content'] if message['content'] is string else message['content']|map(attribute='text')|select('defined')|join('+')) + '<|end|>' }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}
"""

FAMILIES["macros_schema"] = """\
{%- macro render_type(spec, required=false) -%}
    {%- if spec.type == "array" -%}
        {{ render_type(spec['items']) }}[]
    {%- elif spec.enum is defined -%}
        {{ spec.enum | map('tojson') | join(' | ') }}
    {%- elif spec.type == "object" and spec.properties -%}
        {
        {%- for name, value in spec.properties | dictsort -%}
            {{ name }}{{ '' if name in (spec.required or []) else '?' }}: {{ render_type(value) }}{{ ', ' if not loop.last }}
        {%- endfor -%}
        }
    {%- else -%}
        {{ spec.type if spec.type is string else spec.type | join('|') }}
    {%- endif -%}
{%- endmacro -%}
{%- macro section(title) %}
## {{ title | upper }}
{{ caller(title|length) }}
{% endmacro -%}
{% call(n) section("functions") %}
  {% for tool in tools or [] %}
  type {{ tool.function.name }} = (_: {{ render_type(tool.function.parameters) }}) => any; // {{ n + loop.index }}
  {% else %}
  none
  {% endfor %}
{% endcall %}
{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}[{{ loop.index }}/{{ loop.length }} {{ loop.cycle('odd', 'even') }}{{ ' changed' if loop.changed(m.role) }}] {{ m.role | title | replace('A', '4') }}: {{ (m.content or 'null') | string | indent(4) }}
{% if loop.index >= 3 %}{% break %}{% endif %}
{% endfor %}
"""

EDGES = {  # name: (template, variables)
    "whitespace": ("  {% if true %}\n    a  \n  {%- if true -%}  b  {%- endif +%}\nc{{ 1 }}\n\n{# x #}\n  {#- y -#}  d\n   {%+ if true %}e{% endif %}\n{% endif %}{{ 'f' }}\n", {}),
    "whitespace_2": ("a\r\n  {% set x = 1 %}  \r\nb {{- ' c ' -}} d\n{%- raw %} {{ x }} {% if %}{% endraw -%}  e\n{% raw -%}  f{% endraw %}\n\n", {}),
    "trailing": ("x\n\n", {}),
    "generators": ("{% set g = n|map('upper') %}{{ g is iterable }}{{ g is sequence }}{{ g|join('+') }}{{ g|join('+') }};{% if n|select('equalto', 'x') %}true{% endif %}{{ 'a' in n|map('lower') }}{{ (n|reverse).x }}{{ (n|map('upper'))[0] }}{% for x in n|map('upper') %}{{ loop.index }}/{{ loop.length }}{{ x }}{% endfor %}", {"n": ["a", "b"]}),
    "generator_length": ("{{ n|map('upper')|length }}", {"n": ["a"]}),
    "generator_json": ("{{ n|selectattr('a')|tojson }}", {"n": [{"a": 1}]}),
    "generator_last": ("{{ n|map('upper')|last }}", {"n": ["a"]}),
    "generator_sum": ("{{ [1] + n|map('upper') }}", {"n": ["a"]}),
    "reverse_length": ("{{ n|reverse|length }}", {"n": ["a"]}),
    "markup": ("{{ '<a>'|safe + n }} {{ n + '<b>'|safe }} {{ '<a>'|safe ~ n }} {{ ('<i>'|safe + n)|upper }} {{ '%s<'|safe % n }} {{ ('<'|safe) * 2 + n }} {{ ('<x>'|safe)[1:] + n }} {{ (n|e)|e }} {{ n|e|forceescape }} {{ '<'|safe is escaped }}{{ n is escaped }} {{ '<a>'|safe|replace('a', n) }} {{ ('<a>'|safe).replace('a', n) }} {{ [n, '<'|safe]|join }} {{ ('<'|safe).join([n, n]) }} {{ ('<a> <b>'|safe).split()[1] + n }} {{ '<'|safe == '<' }} {{ {'<': 1}['<'|safe] }} {{ ['<'|safe] }} {{ ('<'|safe)|tojson }} {{ ('< a'|safe)|trim + n }} {{ ('<'|safe)|string + n }}", {"n": "\"&'"}),
    "markup_number": ("{{ '<a>'|safe + 1 }}", {}),
    "split_rest": ("{{ ' 1 2  3 '.split(none, 0) }}{{ ' 1 2  3 '.split(none, 2) }}{{ ' 1 2  3 '.rsplit(none, 1) }}{{ ' 1 2  3 '.split(none, 9) }}", {}),
    "slice_of_a_number": ("{{ n[1:] }}", {"n": 5}),
    "slice_of_a_dict": ("{{ n[1:] }}", {"n": {"a": 1}}),
    "slice_of_nothing": ("{{ n[:1] }}", {"n": None}),
    "slice_of_a_generator": ("{{ (n|items)[1:] }}", {"n": {"a": 1}}),
    "dictsort_of_nothing": ("{% for a, b in nosuch|dictsort %}{{ a }}{% endfor %}", {}),
    "sort_equal_keys": ("{{ [none, none]|sort }}{{ n|sort(attribute='nosuch') }}{{ [n, n]|sort|length }}", {"n": [{"a": 1}, {"a": 2}]}),
    "sort_no_order": ("{{ [none, 1]|sort }}", {}),
    "callable": ("{{ nosuch is callable }}{{ range is callable }}{{ 1 is callable }}", {}),
    "replace_anything": ("{{ 'a1b1'|replace(1, none) }}{{ 'aaa'|replace('a', 2.5, 2) }}", {}),
    "groupby_default": ("{% for city, all in n|groupby('city', default='NY') %}{{ city }}:{{ all|map(attribute='name')|join(',') }};{% endfor %}", {"n": [{"name": "e", "city": "NY"}, {"name": "s", "city": "WA"}, {"name": "j"}]}),
    "slice_filter": ("{{ range(7)|slice(3)|list }}{{ range(7)|slice(3, 'x')|list }}{{ []|slice(2)|list }}", {}),
    "no_sequence": ("{{ none|select('string')|list }}{{ n|rejectattr('a')|list }}{{ n|map('upper')|list }}{{ 0|map(attribute='a')|list }}", {"n": None}),
    "no_sequence_2": ("{{ 5|select('string')|list }}", {}),
    "none_element": ("{{ n[0].x }}", {"n": None}),
    "operators": ("{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 1 + 2 * 3 - 4 }} {{ -2 ** 2 }} {{ 1.5 + 1 }} {{ 1e3 }} {{ 0.1 + 0.2 }} {{ 'a' ~ 1 ~ none ~ true }} {{ 'ab' * 3 }} {{ [1] + [2] }} {{ (1,) + (2, 3) }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}", {}),
    "comparison": ("{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ 1 in [1, 2] }} {{ 'b' not in 'abc' }} {{ 'k' in {'k': 1} }} {{ true == 1 }} {{ none == false }} {{ [1, 2] == [1, 2] }} {{ (1, 2) < (1, 3) }} {{ x == y }} {{ not 1 == 2 }} {{ 3 > 2 and 2 > 1 or false }} {{ 0 or 'z' }} {{ '' and 'z' }}|", {}),
    "literals": ("{{ 'a\\n\\t\\'\\\\' }} {{ \"q\\x41\\u00e9\" }} {{ 'a' 'b' }} {{ [1, 'two', 3.0, none, true, [], {}] }} {{ {'a': 1, 'b': [2]} }} {{ (1,) }} {{ () }} {{ 1_000 }} {{ 0x1F }} {{ True }} {{ None }} {{ \"it's\" | list }} {{ ['a\\nb', \"it's\", 'say \"hi\"', 'é', '\\u00a0'] }}", {}),
    "floats": ("{{ 1.0 }} {{ 1e16 }} {{ 1e15 }} {{ 1.5e-5 }} {{ 0.0001 }} {{ 123456789.123 }} {{ 1/3 }} {{ 100.0 * 3 }} {{ 2.5 | round }} {{ 3.14159 | round(2) }} {{ 2.1 | round(0, 'ceil') }} {{ 7 | round }} {{ -3 | abs }} {{ '3.7' | float }} {{ '12' | int + 1 }} {{ 'x' | int(5) }} {{ '0x1f' | int(0, 16) }} {{ 3.99 | int }} {{ '3.9' | int }}", {}),
    "undefined": ("[{{ nope }}] [{{ nope is defined }}] [{{ a.b }}] [{{ a.b is undefined }}] [{{ nope | default('d') }}] [{{ '' | default('d', true) }}] [{{ nope | length }}] [{% for x in nope %}x{% else %}none{% endfor %}] [{{ 'yes' if nope else 'no' }}] [{{ 'only' if nope }}] [{{ a['b'] or 'alt' }}] [{{ l[9] }}] [{{ none.x }}] [{{ 'x' in nope }}] [{{ nope ~ 'y' }}] [{{ nope | join }}]", {"a": {}, "l": [1]}),
    "undefined_error": ("{{ nope.x }}", {}), "undefined_error_2": ("{{ a.b.c }}", {"a": {}}),
    "undefined_error_3": ("{{ nope + 1 }}", {}), "undefined_error_4": ("{{ nope() }}", {}),
    "undefined_error_5": ("{{ nope | tojson }}", {}),
    "type_error": ("{{ 'a' + 1 }}", {}), "type_error_2": ("{{ 1 < 'a' }}", {}),
    "type_error_3": ("{% for x in 3 %}{% endfor %}", {}), "type_error_4": ("{{ 1 in 2 }}", {}),
    "type_error_5": ("{% for a, b in [[1]] %}{% endfor %}", {}), "zero": ("{{ 1 // 0 }}", {}),
    "sandbox": ("{% set _ = l.append(3) %}{{ l }}", {"l": [1]}),
    "raise": ("{{ raise_exception('No good: ' ~ 3) }}", {}),
    "no_filter": ("{{ 1 | nosuchfilter }}", {}), "syntax": ("{% if %}", {}),
    "syntax_2": ("{{ a b }}", {}), "syntax_3": ("{% for x in y %}", {}), "syntax_4": ("{% nosuch %}", {}),
    "slices": ("{{ s[1:3] }} {{ s[-2:] }} {{ s[::-1] }} {{ s[::2] }} {{ s[0] }} {{ s[-1] }} {{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[5:] }} {{ l[-10:2] }} {{ l[3:0:-1] }} {{ l[-1] }} {{ l.0 }} {{ s[10:] }}|", {"s": "añ😀de", "l": [1, 2, 3, 4]}),
    "strings": ("{{ ' x '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'a,b,,c'.split(',') }}|{{ ' a  b '.split() }}|{{ 'a b c'.split(' ', 1) }}|{{ 'a.b.c'.rsplit('.', 1) }}|{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith(('x', 'c')) }}|{{ 'aXbX'.replace('X', '-', 1) }}|{{ 'Hello World'.upper() }}|{{ 'ÉÀ'.lower() }}|{{ 'hello wORLD'.title() }}|{{ 'hELLO'.capitalize() }}|{{ 'abc'.find('c') }}|{{ 'abcabc'.rfind('b') }}|{{ 'banana'.count('an') }}|{{ '-'.join(['a', 'b']) }}|{{ 'a\\nb\\r\\nc'.splitlines() }}|{{ '12'.isdigit() }}|{{ 'ab1'.isalnum() }}|{{ 'k=v=w'.partition('=') }}|{{ '7'.zfill(3) }}|{{ 'a'.ljust(3) }}|{{ 'prefix_x'.removeprefix('prefix_') }}|{{ '{} and {}'.format(1, 'b') }}|{{ '{a:>4}|{0:.2f}'.format(2.5, a='x') }}|{{ '%s-%03d-%.1f' % ('a', 7, 2.25) }}|{{ '%s' | format('z') }}|{{ 'ß'.upper() }}|{{ 'A' in 'ABC'.lower() }}|{{ 'xabcx'.lstrip('x') }}", {}),
    "dicts": ("{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {{ d.keys() | list }} {{ d.values() | list }} {{ d.get('a') }} {{ d.get('z', 9) }} {{ d.get('z') }} {{ d | length }} {{ d.items is defined }} {{ e['items'] }} {{ d | items | list }} {% for k in d %}{{ k }}{% endfor %} {{ dict(z=1, **d) }} {{ {'x': 1}['x'] }} {{ d | dictsort(reverse=true) }} {{ d | dictsort(by='value') }}", {"d": {"b": 1, "a": 2}, "e": {"items": 7}}),
    "tojson": ("{{ v | tojson }}\n{{ v | tojson(indent=2) }}\n{{ v | tojson(separators=(',', ':')) }}\n{{ v | tojson(ensure_ascii=true) }}\n{{ v | tojson(sort_keys=true) }}\n{{ [] | tojson(indent=2) }}{{ 1.0 | tojson }}{{ 'x' | tojson }}{{ (1, 2) | tojson }}{{ {1: 2, none: 3, true: 4} | tojson }}{{ [[], {}, [1]] | tojson(indent=1) }}", {"v": {"z": "é\u2028<&>'\"\\/\n\x7f\x01😀", "a": [1, 2.5, True, None, {}], "n": {"k": []}}}),
    "filters": ("{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A'] | sort(case_sensitive=true) }} {{ [1, 1, 2] | unique | list }} {{ ['a', 'A'] | unique | list }} {{ [1, 2, 3] | reverse | list }} {{ 'abc' | reverse }} {{ [1, 2] | first }} {{ [1, 2] | last }} {{ [1, 2, 3] | sum }} {{ [1, 5, 3] | max }} {{ ['b', 'A'] | min }} {{ 'hello world' | title }} {{ 'hELLO wORLD' | capitalize }} {{ ' x ' | trim }} {{ 'xyx' | trim('x') }} {{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ 'a b' | urlencode }} {{ '<a href=\"x\">' | e }} {{ 'one two three' | wordcount }} {{ 'one two three four' | truncate(11) }} {{ [['a', 2], ['b', 1]] | sort(attribute='1') }} {{ 'abc' | list }} {{ 5 | string + 'x' }} {{ 'x' | center(5) }}| {{ [1, 2, 3] | select('odd') | list }} {{ [1, 2, 3] | reject('>', 1) | list }} {{ ['1', '2'] | map('int') | list }} {{ 'a' | upper | lower | replace('a', 'b') }}", {}),
    "attributes": ("{{ m | map(attribute='r') | list }} {{ m | map(attribute='z', default='-') | join(',') }} {{ m | selectattr('r', 'equalto', 'u') | map(attribute='c.d') | list }} {{ m | rejectattr('r', 'in', ['u']) | list | length }} {{ m | selectattr('c') | list | length }} {{ m | join(', ', attribute='r') }} {{ m | sort(attribute='r') | map(attribute='r') | join }} {% for g, items in m | groupby('r') %}{{ g }}:{{ items | length }} {% endfor %}{{ m | sum(attribute='n') }} {{ m | map(attribute='r') | map('upper') | join('/') }} {{ m | selectattr('n', '>', 1) | map(attribute='n') | first }}", {"m": [{"r": "u", "c": {"d": 1}, "n": 1}, {"r": "a", "c": {}, "n": 2}, {"r": "u", "c": {"d": 3}, "n": 3}]}),
    "indent": ("{{ t | indent }}|{{ t | indent(2, true) }}|{{ t | indent(2, blank=true) }}|{{ t | indent('> ', first=true) }}|{{ 'one' | indent }}|{{ '' | indent }}|", {"t": "a\nb\n\nc\n"}),
    "tests": ("{% for v in vs %}{{ v is string }},{{ v is number }},{{ v is integer }},{{ v is float }},{{ v is boolean }},{{ v is mapping }},{{ v is iterable }},{{ v is sequence }},{{ v is none }},{{ v is true }},{{ v is false }};{% endfor %}{{ 4 is even }}{{ 3 is odd }}{{ 6 is divisibleby 3 }}{{ 'a' is in 'abc' }}{{ 1 is eq 1 }}{{ 2 is gt(1) }}{{ 'A' is upper }}{{ 'a' is lower }}{{ none is not none }}{{ range is callable }}{{ 1 is not string and true }}{{ 3 is ge 3 }}{{ 'x' is sameas 'x' }}", {"vs": ["s", 1, 2.5, True, False, None, [1], {"a": 1}]}),
    "loops": ("{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }};{% endfor %}{% for x in l if x != 2 %}{{ x }}{{ loop.length }}{% else %}never{% endfor %}{% for x in l if x > 9 %}{% else %}empty{% endfor %}{% for x in range(2, 8, 3) %}{{ x }}{% endfor %}{% for x in 'añ' %}{{ x }}.{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for x in l %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% if x == 3 %}{% break %}{% endif %}{% endfor %}{% for x in range(5, 0, -2) %}{{ x }}{% endfor %}", {"l": [1, 2, 3, 4]}),
    "recursion": ("{% for n in tree recursive %}({{ n.v }}@{{ loop.depth }}{% if n.c %}{{ loop(n.c) }}{% endif %}){% endfor %}", {"tree": [{"v": 1, "c": [{"v": 2, "c": [{"v": 3}]}, {"v": 4}]}, {"v": 5}]}),
    "scopes": ("{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 2 %}{% endif %}{{ x }}{% set ns = namespace(n=0, l=[]) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.n }}{{ ns.l }}{{ ns.zz }}{% with a = 3, b = x %}{{ a }}{{ b }}{% set x = 9 %}{% endwith %}{{ x }}{{ a }}{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}", {}),
    "set_block": ("{% set b %}  text {{ 1 + 1 }}\n{% endset %}[{{ b }}]{% set u | upper | trim %} abc {% endset %}[{{ u }}]{% filter upper | replace('B', 'x') %}a{{ 'b' }}c{% endfilter %}", {}),
    "macros": ("{% macro m(a, b='B', c=none) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}|{{ m(1, c=2) }}|{{ m(b=1, a=2) }}|{{ m(1, 2, 3, 4, z=5) }}|{% set g = 'G' %}{% macro n() %}{{ g }}{% set g = 'inner' %}{% endmacro %}{{ n() }}{{ g }}|{% macro fact(k) %}{{ k * (fact(k - 1) | int) if k > 1 else 1 }}{% endmacro %}{{ fact(5) }}|{% macro w(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call w('p') %}in{% endcall %}|{{ m() }}|{{ m.name }}", {}),
    "format": ("{{ '{:>5}|{:<5}|{:^5}|{:*^7}|{:05d}|{:+d}|{:,}|{:.1f}|{:x}|{!r}|{}{{}}'.format('a', 'b', 'c', 'd', 42, 7, 1234567, 2.55, 255, 'q', none) }} {{ '{0}{1}{0}'.format('x', 'y') }} {{ '{:8.3f}|{:d}|{:s}'.format(3.14159, 5, 'z') }}", {}),
    "namespace_error": ("{% set d = {} %}{% set d.x = 1 %}", {}),
    "calls": ("{{ dict(a=1)['a'] }} {{ range(3) | list }} {{ (range(10) | list)[2:4] }} {{ namespace(x=1).x }} {% set j = joiner('+') %}{% for i in [1, 2, 3] %}{{ j() }}{{ i }}{% endfor %} {{ 'abc'.upper().lower() }} {{ [1, 2, 3].index(2) }} {{ [1, 1].count(1) }} {{ strftime_now('%Y-%m-%d %H:%M') }} {{ range(*[1, 3]) | list }}", {}),
    "range_too_big": ("{{ range(100001) | list | length }}", {}),
    "conditional": ("{{ 'a' if x else 'b' if y else 'c' }}{{ ('p' if x) ~ 'q' }}{% if x %}1{% elif y %}2{% elif z %}3{% else %}4{% endif %}{% if a.b.c is defined %}5{% endif %}", {"y": 1, "a": {"b": {}}}),
    "precedence": ("{{ 2 * 3 ~ 4 }} {{ 'a' ~ 1 * 2 }} {{ not false and true }} {{ 2 * 3 | float }} {{ -1 | abs }} {{ (-1) | abs }} {{ 1 - -1 }} {{ 'x' | upper ~ 'y' }} {{ 10 - 2 - 3 }} {{ 2 ** 3 ** 2 }} {{ 1 if false else 2 + 3 }} {{ 'a' in 'abc' and 'b' }} {{ not 'a' in 'b' }} {{ 5 is odd and 4 is even }}", {}),
    "unicode": ("{{ 'naïve 日本 😀' | length }} {{ '日本'[1] }} {{ 'É' | lower }} {{ '😀' in s }} {{ s | upper }} {{ s | tojson }} {% set été = 1 %}{{ été }}", {"s": "😀ñ"}),
    "comments": ("a{# {{ nope.x }} {% if %} #}b{#- c -#}  d {#\n multi\n line #}\ne", {}),
    "raw_data": ("{ {a} %} }} #} {{ '}}' }} {{ '{%' }} {{ {'a': {'b': 1}} }}", {}),
}


def render(env, source, variables):
    case = {"variables": variables}
    try:
        case["output"] = env.from_string(source).render(**variables)
    except Exception as e:  # every error of the reference must be one here
        case["error"] = f"{type(e).__name__}: {e}"
    return case


def write(folder, name, source, cases):
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    text = '{"template": %s,\n"cases": [\n%s]}\n' % (json.dumps(source, ensure_ascii=False), lines)
    (folder / f"{name}.json").write_text(text)


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    env = environment()
    for name, source in FAMILIES.items():
        cases = chats()
        if name == "qwen_thinking":
            cases += chats(enable_thinking=False)[:2]
        if name == "llama3_tools":
            cases += chats(tools_in_user_message=False, date_string="1 May 2025")[:6]
            cases += chats(builtin_tools=["code_interpreter", "search"])[:2]
        write(folder, name, source, [render(env, source, v) for v in cases])
    edges = [{"name": name, "template": source, **render(env, source, variables)}
             for name, (source, variables) in EDGES.items()]
    (folder / "edges.json").write_text(
        "[\n" + ",\n".join(json.dumps(e, ensure_ascii=False) for e in edges) + "]\n")


if __name__ == "__main__":
    main()
