"""The files that the tarball and the Debian package share, laid out in a folder: the command, its libraries, the model
that ships, manual pages, completions and documents. The command prints what is made from its settings itself."""
import os
import re
import shutil

from bundle import ROOT, add_libraries, check_closed, copy_licences, fail, glibc_version, run

DOCUMENTS = ["README.md", "CHANGELOG.md", "SECURITY.md"]
GLIBC_MAX = "2.36"  # Debian 12's


def built_version(build):
    """What the built command says of itself: 0.1.0, or 0.1.0+12.g1a2b3c4d5."""
    if not (build / "espalier").exists():
        fail(f"there is no {build}/espalier; build it first: cmake --preset package && "
             "cmake --build --preset package --target espalier")
    words = run(build / "espalier", "--version").split()
    if len(words) != 2 or not re.fullmatch(r"[0-9.]+(\+[0-9a-z.]+)?", words[1]):
        fail(f"{build}/espalier --version printed {' '.join(words)!r}, not a version")
    return words[1]


def stage_command(build, prefix, libraries):
    """Lays the command out under `prefix`, with its libraries in the folder `libraries` below it ("lib"). Gives the
    originals of the libraries, by name."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / libraries).mkdir(parents=True)
    command = prefix / "bin/espalier"
    shutil.copy(build / "espalier", command)
    originals = add_libraries(prefix / libraries, [build / "espalier"], {f"$ORIGIN/../{libraries}": [command]})
    check_closed(prefix / libraries, [command])
    glibc_version([*sorted((prefix / libraries).glob("*")), command], GLIBC_MAX)
    for model in ("default_model", "seeing_model"):
        shutil.copytree(ROOT / "share" / model, prefix / "share/espalier" / model)
    return originals


def stage_printed(build, prefix, zsh="share/zsh/site-functions"):
    """Manual pages and completions, which the command prints from its table of settings."""
    manual = prefix / "share/man/man1"
    manual.mkdir(parents=True)
    environment = {"PATH": os.environ["PATH"]}  # no settings of whoever packages
    run(build / "espalier", "manual", "--output", manual, env=environment)
    for shell, file in (("bash", "share/bash-completion/completions/espalier"), ("zsh", f"{zsh}/_espalier"),
                        ("fish", "share/fish/vendor_completions.d/espalier.fish")):
        (prefix / file).parent.mkdir(parents=True, exist_ok=True)
        (prefix / file).write_text(run(build / "espalier", "completion", shell, env=environment), encoding="utf-8")


def stage_documents(originals, folder):
    """Documents and licences; those of bundled libraries come from the packages that they were taken from."""
    copy_licences(originals, folder / "licenses")
    for name in DOCUMENTS:
        shutil.copy(ROOT / name, folder)
