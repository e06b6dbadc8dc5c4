"""narrows, through its command line."""
import json
import pathlib
import subprocess
import tempfile

import numpy as np

from . import ToolError, existing_file


def run(binary, *arguments):
    existing_file(binary, "the narrows program; build it, or name it with --narrows")
    done = subprocess.run([str(binary), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ToolError(f"{binary} {arguments[0]}: exit status {done.returncode}: {last}")
    return done.stdout


def _joined(ids):
    return ",".join(map(str, ids))


def logits(binary, model, ids, extra=()):
    """Logits after each id, float32 tokens x vocabulary."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "logits.npy"
        run(binary, "logits", "-m", model, "--ids", _joined(ids), "-o", out, *extra)
        return np.load(out)


def greedy(binary, model, prompt, count, extra=()):
    """Ids generated at temperature 0 after the ids of a prompt."""
    out = run(binary, "run", "-m", model, "--prompt-ids", _joined(prompt), "-n", count, "--temp", 0, "--output-ids",
               *extra)
    last = (out.strip().splitlines() or [""])[-1]
    try:
        ids = [int(id) for id in last.split(",")] if last else []
    except ValueError:
        raise ToolError(f"{binary} run: last line is not ids separated by commas: {last[:80]!r}") from None
    if len(ids) > count:
        raise ToolError(f"{binary} run: {len(ids)} ids generated, expected at most {count}")
    return ids


def tokenize(binary, model, text):
    """Ids of a text, specials neither added nor parsed."""
    return [int(id) for id in run(binary, "tokenize", "-m", model, "--ids", "-p", text).strip().split(",") if id]


def perplexity(binary, model, text, context, max_tokens, extra=()):
    """The JSON object that `narrows eval` prints."""
    out = run(binary, "eval", "-m", model, "-f", text, "--ctx", context, "--max-tokens", max_tokens, "--json", *extra)
    try:
        result = json.loads(out)
        result["perplexity"] = float(result["perplexity"])
        return result
    except (ValueError, KeyError, TypeError) as error:
        raise ToolError(f"{binary} eval: expected a JSON object with a perplexity ({error!r})") from None
