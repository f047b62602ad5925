"""Values that a field of a request may be attacked with, as the text of JSON (some are none)."""
import json

LONG = 100_000


def nested(depth, opening, closing, inner="1"):
    return opening * depth + inner + closing * depth


NUMBERS = ["0", "1", "-1", "2", "3.0", "1.5", "-0.5", "1e-9", "-0.0", "1e-400", "255", "65536", "2147483647", "2147483648",
           "-2147483649", "9007199254740993", "9223372036854775808", "18446744073709551616", "1e308", "1e999",
           "-1e999", "123456789012345678901234567890"]
STRINGS = ["", "a", " ", "1", "auto", "none", "null", "base64", "\u0000", "\n\r\t", "a\u0000b", "\U0001F600", "\u202Eabc",
           "\uFFFD\uFFFE", "../../etc/passwd", "%s%n{}", "[(*", "{\"type\":1}", "<|im_end|>", "a" * LONG,
           "\u00E9" * LONG]
LISTS = [[], [[]], [None], ["a"], [""], [1], [-1], [1.5], [2 ** 31], [True], ["a", 1], [{}], [[1], [2]], ["a", None],
         ["x"] * 300, [1] * 5000, [{"type": "text", "text": "a"}], [{"role": "user"}], [{"type": "function"}],
         [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]]
OBJECTS = [{}, {"a": 1}, {"": None}, {"type": "text"}, {"type": "json_object"}, {"type": 1}, {"type": "json_schema"},
           {"type": "json_schema", "json_schema": {"name": 1, "schema": 2}}, {"1": 1e9}, {"-1": 1}, {"x": {"y": []}},
           {"type": "function", "function": {"name": "f"}}, {"99999999999": 0}, {"a" * 1000: 1}]
# Not JSON at all, or JSON that a reader may stumble over.
RAW = ["NaN", "Infinity", "-Infinity", "\"\\ud800\"", "\"\\udc00\\ud800\"", "\"\\x\"", "\"", "01", "+1", "1.", ".5", "0x10",
       "tru", "'a'", "[1,]", "{\"a\":}", "", nested(40, "[", "]"), nested(40, "{\"a\":", "}"), nested(5000, "[", "]"),
       nested(5000, "{\"a\":", "}"), "{\"a\":1,\"a\":2}"]

ALL = (["null", "true", "false"] + NUMBERS + [json.dumps(s) for s in STRINGS] + [json.dumps(v) for v in LISTS + OBJECTS] + RAW)


def is_json(text):
    """Whether a strict reader takes it: Python's takes NaN and lone surrogates, RFC 8259's do not."""
    if "NaN" in text or "Infinity" in text or "\\ud" in text:
        return False
    try:
        json.loads(text)
        return True
    except (ValueError, RecursionError):
        return False
