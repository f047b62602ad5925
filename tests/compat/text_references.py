"""Our tokenizers beside `tokenizers`, `tiktoken` and `sentencepiece`, and our chat templates beside
jinja2, on what is at hand: vocabularies trained here, the goldens' and the shipped model's, and real
ones where ESPALIER_DATA (../shared/data) has them.

    python tests/compat/text_references.py [COUNT [SEED]]
COUNT random texts (2000) and a tenth as many lists of ids for each vocabulary; the seed is drawn and
printed. The programs in text/ do the same for files that are named to them."""
import filecmp
import glob
import json
import lzma
import os
import random
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.path.join(ROOT, "build", "release")
DATA = os.environ.get("ESPALIER_DATA", os.path.join(ROOT, "..", "shared", "data"))


def program(name, *arguments):
    """Runs one of text/; whether it ended well."""
    print(f"-- {name}", flush=True)
    return subprocess.run([sys.executable, "-B", os.path.join(ROOT, "tests", "compat", "text", name),
                           *arguments], check=False).returncode == 0


def vocabularies(folder):
    """Paths of all there are; those that have to be made or unpacked first lie in `folder`."""
    tokenizers = os.path.join(ROOT, "tests", "golden", "tokenizers")
    if not program("make_fuzz_vocabularies.py", folder):
        sys.exit("no vocabulary could be trained")
    for kind in ("cl100k", "gpt2", "llama", "o200k", "qwen"):  # by the name words are cut
        shutil.copy(os.path.join(tokenizers, "tiktoken", "ranks.tiktoken"),
                    os.path.join(folder, f"ranks_{kind}.tiktoken"))
    for packed in glob.glob(os.path.join(DATA, "vocab", "*.tiktoken.xz")):
        with lzma.open(packed) as f, open(os.path.join(folder, os.path.basename(packed)[:-3]), "wb") as out:
            shutil.copyfileobj(f, out)
    return sorted([*glob.glob(os.path.join(folder, "*")),
                   *glob.glob(os.path.join(DATA, "vocab", "*.model.v*")),
                   *glob.glob(os.path.join(tokenizers, "*", "tokenizer.json")),
                   *glob.glob(os.path.join(tokenizers, "sentencepiece", "*.model")),
                   os.path.join(ROOT, "share", "default_model", "tokenizer.json")])


def compare_tokenizers(count, seed):
    with tempfile.TemporaryDirectory() as folder:
        paths = vocabularies(folder)
        return program("fuzz_tokenizers.py", os.path.join(BUILD, "text_tokenize"), str(count), str(seed),
                       *paths)


def compare_templates():
    """The goldens are what jinja2 still renders; the families' templates and the shipped model's also
    in conversations that no golden holds."""
    goldens = os.path.join(ROOT, "tests", "golden", "templates")
    with tempfile.TemporaryDirectory() as folder:
        rendered = os.path.join(folder, "rendered")
        good = program("make_template_goldens.py", rendered)
        same, *others = filecmp.cmpfiles(goldens, rendered, os.listdir(goldens), shallow=False)
        print(f"goldens as jinja2 renders them: {len(same)}, others: {sum(others, [])}")
        templates = {}
        for name in os.listdir(goldens):
            with open(os.path.join(goldens, name), encoding="utf-8") as f:
                golden = json.load(f)
            if isinstance(golden, dict):
                templates[name] = golden["template"]
        with open(os.path.join(ROOT, "share", "default_model", "tokenizer_config.json"), encoding="utf-8") as f:
            templates["default_model"] = json.load(f)["chat_template"]
        paths = []
        for name, text in sorted(templates.items()):
            paths.append(os.path.join(folder, os.path.splitext(name)[0] + ".jinja"))
            with open(paths[-1], "w", encoding="utf-8") as f:
                f.write(text)
        good &= program("try_templates.py", os.path.join(BUILD, "espalier"), *paths)
        return good and not any(others)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 31)
    good = compare_tokenizers(count, seed)
    good &= compare_templates()
    if not good:
        sys.exit(f"texts differ from the references' (seed {seed})")
    print("text references: ok")


if __name__ == "__main__":
    main()
