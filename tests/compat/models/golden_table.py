#!/usr/bin/env python3
"""The errors of the golden models, as models_test measured them, as a table.

    build/release/models_test --gtest_filter='*Golden*:*PooledModel*' --gtest_output=xml:goldens.xml
    python3 tests/compat/models/golden_table.py goldens.xml
Errors are the largest difference from transformers' float32, in units of the reference's spread; the
worst of all instruction sets. In models with experts bfloat16 may choose others: there it is that of
the rows that have to agree.
"""
import sys
import xml.etree.ElementTree as tree


def show(error):
    return "below 1e-06" if error < 1e-6 else f"{error:.1e}"


def main():
    logits, gguf, vectors = {}, {}, {}
    for case in tree.parse(sys.argv[1]).iter("testcase"):
        numbers = {p.get("name"): float(p.get("value")) for p in case.iter("property")}
        if not numbers:
            continue
        name = case.get("value_param") or case.get("name")
        if case.get("classname").endswith("GgufFamilyGolden"):
            gguf[case.get("name").split("/")[-1]] = numbers["error"]
        elif "PooledModel" in case.get("classname"):
            vectors[name.strip('"')] = numbers
        else:
            key = case.get("name").split("/")[-1]
            model, _, dtype = key.rpartition("_")
            logits.setdefault(model, {})[dtype] = max(numbers.values())
    print("| golden | float32 | bfloat16 | as GGUF, float32 |\n|---|---|---|---|")
    for model, errors in sorted(logits.items()):
        own = show(gguf[model]) if model in gguf else ""
        print(f"| {model} | {show(errors['float32'])} | {show(errors['bfloat16'])} | {own} |")
    for model, errors in sorted(vectors.items()):
        print(f"| {model} (vector) | {show(errors['float32'])} | {show(errors['bfloat16'])} | |")


if __name__ == "__main__":
    main()
