#!/usr/bin/env python3
"""Tests of the narrows program. Use: cli_test.py NAME, with NARROWS (the program), NARROWS_MODELS, NARROWS_BUILD and
NARROWS_SOURCE in the environment. Exit status 77 means skipped. Python's standard library only."""
import filecmp, glob, json, os, pty, re, resource, select, shutil, signal, struct, subprocess, sys, tempfile, termios, time, unittest

NARROWS = os.environ.get("NARROWS", "build/release/narrows")
SOURCE = os.environ.get("NARROWS_SOURCE", ".")
VOCABULARIES = sorted(glob.glob(os.path.join(SOURCE, "../shared/data/vocab/*.gguf")))
MODEL = os.path.join(os.environ.get("NARROWS_MODELS", "models"), "SmolLM2-135M-Instruct.Q4_1.gguf")


def needs_model(test):
    return unittest.skipUnless(os.path.exists(MODEL), f"{MODEL} is absent: run tools/fetch_models.py")(test)


def run(*arguments, stdin=b"", **more):
    more.setdefault("stdout", subprocess.PIPE)
    return subprocess.run([NARROWS, *map(str, arguments)], input=stdin, stderr=subprocess.PIPE, timeout=300, **more)


class Case(unittest.TestCase):
    def ok(self, *arguments, **more):
        result = run(*arguments, **more)
        self.assertEqual(result.returncode, 0, result.stderr.decode(errors="replace"))
        return result.stdout

    def refused(self, status, pattern, *arguments, **more):
        """The program ends with `status` and one line on stderr that matches."""
        result = run(*arguments, **more)
        error = result.stderr.decode(errors="replace")
        self.assertEqual(result.returncode, status, error)
        self.assertRegex(error, r"\Anarrows: [^\n]*\n\Z")
        self.assertRegex(error, pattern)

    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    def file(self, content, name="file"):
        path = os.path.join(self.folder(), name)
        with open(path, "wb") as f:
            f.write(content)
        return path


COMMANDS = ["run", "info", "tokenize", "logits", "eval", "bench", "quantize", "convert", "calibrate", "gsi-report", "ada-report",
            "tune", "compress"]


class Help(Case):
    def test(self):
        text = self.ok("--help").decode()
        for command in COMMANDS:
            self.assertIn(f"\n  {command} ", text)
            self.assertIn(f"narrows {command}", self.ok(command, "--help").decode())
        self.assertRegex(self.ok("--version").decode(), r"\Anarrows \d+\.\d+\.\d+\n\Z")
        text = self.ok("run", "-h").decode()
        for flag in ["-cnv", "-no-cnv", "-sys", "-st", "-ub", "--temp", "--top-k", "--repeat-penalty"]:
            self.assertRegex(text, rf"(?m)^  .*{flag}\b")
        self.assertNotIn("--ngl", text)


class Usage(Case):
    def test(self):
        self.refused(2, "expected a command")
        self.refused(2, "unknown command frobnicate", "frobnicate")
        for command in COMMANDS:
            self.refused(2, command + ": ", command, "--no-such-flag")
        self.refused(2, "info: FILE is required", "info")
        self.refused(2, "quantize: OUT.gguf is required", "quantize", "in.gguf")
        model = ["run", "-m", "absent.gguf"]
        for flags, pattern in [
            (["--no-such-flag"], "unexpected argument --no-such-flag"),
            (["-hf", "a/b"], "run: unexpected argument -hf"),  # not -h -f
            (["-prompt=hi"], "run: unexpected argument -prompt=hi"),
            (["-n", "-5"], "--predict: expected .* found -5"),
            (["-n", "many"], "--predict: .*many"),
            (["-c", "-1"], "--ctx-size: .*-1"),
            (["-t", "-7"], "--threads: .*-7"),
            (["--top-p", "2"], "--top-p: .*from 0 to 1, found 2"),
            (["--min-p", "nan"], "--min-p: .*nan"),
            (["--top-k", "-1"], "--top-k: .*-1"),
            (["--temp", "-0.5"], "--temp: .*-0.5"),
            (["--repeat-penalty", "0"], "--repeat-penalty: .*0"),
            (["-ub", "0"], "--ubatch-size: .*0"),
            (["-ctk", "q3"], "--kv-type: .*q3"),
            (["-ctk", "f16", "-ctv", "f32"], "differ"),
            (["-r", ""], "--reverse-prompt: .*empty"),
            (["-p", "a", "-f", "b"], "exclude"),
            (["-cnv", "-no-cnv"], "exclude"),
            (["-s", "-2"], "--seed: .*-2"),
            (["-s", "abc"], "expected a number: --seed = abc"),
        ]:
            with self.subTest(flags=flags):
                self.refused(2, pattern, *model, *flags)
        self.refused(2, "--ids: .*\"x\"", "logits", "-m", MODEL, "--ids", "1,x", "-o", "/tmp/never.npy")
        self.refused(2, "TYPE: .*Q9_9", "quantize", "in.gguf", "out.gguf", "Q9_9")
        self.refused(2, "nothing to measure", "bench", "-m", MODEL, "-p", "0", "-n", "0")


class IgnoredFlags(Case):
    def test(self):
        flags = ["-ngl", "99", "-fa", "--mlock", "--no-mmap", "--numa", "distribute", "-nkvo", "-mg", "0", "-ts", "1,1",
                 "-sm", "none", "--no-warmup", "-dev", "none", "-fa", "on", "--flash-attn", "auto"]
        result = run("run", "-m", "absent.gguf", *flags)
        lines = result.stderr.decode().splitlines()
        self.assertEqual(result.returncode, 1)
        for flag in ["--gpu-layers", "--flash-attn", "--mlock", "--no-mmap", "--numa", "--no-kv-offload", "--main-gpu",
                     "--tensor-split", "--split-mode", "--no-warmup", "--device"]:
            self.assertEqual(sum(line.startswith(f"narrows: {flag} has no effect: ") for line in lines), 1, flag)
        self.assertRegex(lines[-1], "absent.gguf")


class MissingAndBrokenFiles(Case):
    def test(self):
        self.refused(1, "/absent.gguf: cannot open", "info", "/absent.gguf")
        self.refused(1, "/tmp: ", "info", "/tmp")
        self.refused(1, "empty", "info", self.file(b""))
        self.refused(1, "file", "info", self.file(b"GGUF"))
        self.refused(1, "file", "tokenize", "-m", self.file(b"GGUF\x03\0\0\0" + b"\xff" * 64), "-p", "x")
        self.refused(1, "cannot open", "quantize", "/absent.gguf", "out.gguf", "Q8_0")
        self.refused(1, "prompt is empty", "run", "-m", MODEL, "-f", self.file(b""))
        self.refused(1, "/absent.txt: cannot open", "run", "-m", MODEL, "-f", "/absent.txt")
        self.refused(1, "/absent.txt: cannot open", "eval", "-m", MODEL, "-f", "/absent.txt")

    @needs_model
    def test_truncated(self):
        with open(MODEL, "rb") as f:
            whole = f.read()
        for size in [10, 100, 100_000, 3_000_000, len(whole) // 2, len(whole) - 1]:
            self.refused(1, "model.gguf: ", "info", self.file(whole[:size], "model.gguf"))

    @needs_model
    def test_unwritable(self):
        self.refused(1, "/absent/x.npy: cannot create", "logits", "-m", MODEL, "--ids", "1", "-o", "/absent/x.npy")
        self.refused(1, "cannot create", "quantize", MODEL, "/absent/x.gguf", "Q8_0")
        self.refused(1, "id|token", "logits", "-m", MODEL, "--ids", "99999999", "-o", self.file(b""))
        self.refused(1, "text", "eval", "-m", MODEL, "-f", self.file(b""))


class ClosedOutput(Case):
    def test(self):
        with open("/dev/full", "wb") as full:
            self.refused(1, "standard output: cannot write: No space", "--help", stdout=full)

    @needs_model
    def test_model(self):
        with open("/dev/full", "wb") as full:
            self.refused(1, "standard output: cannot write: No space", "tokenize", "-m", MODEL, "-p", "a", stdout=full)
            self.refused(1, "standard output: cannot write: No space", "run", "-m", MODEL, "-p", "a", stdout=full)
            # Where standard error cannot be written either, the exit status still tells.
            self.assertEqual(subprocess.run([NARROWS, "tokenize", "-m", MODEL, "-p", "a"], stdout=full, stderr=full,
                                            timeout=300).returncode, 1)
            self.assertEqual(subprocess.run([NARROWS, "run", "-m", MODEL, "-p", "a", "-n", "2"], stderr=full,
                                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=300).returncode, 0)
        # A closed descriptor is not lent to the file being written.
        out = os.path.join(self.folder(), "out.npy")
        self.ok("logits", "-m", MODEL, "--ids", "1", "-o", out, stdout=None, preexec_fn=lambda: os.close(1))
        with open(out, "rb") as f:
            self.assertEqual(f.read(6), b"\x93NUMPY")
        self.refused(1, "standard output: cannot write", "tokenize", "-m", MODEL, "-p", "a", stdout=None,
                     preexec_fn=lambda: os.close(1))
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as closed:
            self.refused(1, "standard output: cannot write: Broken pipe", "run", "-m", MODEL, "-p", "a", stdout=closed)


@needs_model
class Tokenize(Case):
    def test(self):
        text = "Hello, wörld 😀\n\n\tdef f(x):  return x\\n <|im_end|> \xff".encode("latin-1", "ignore") + "日本語".encode() + b"\xff\x80"
        path = self.file(text)
        ids = self.ok("tokenize", "-m", MODEL, "-f", path, "--ids").decode().strip()
        self.assertRegex(ids, r"\A\d+(,\d+)*\Z")
        # Exact, but for bytes that are no UTF-8: each becomes U+FFFD before it is tokenized.
        self.assertEqual(self.ok("tokenize", "-m", MODEL, "--detokenize", ids).decode(), text.decode(errors="replace"))
        self.assertEqual(self.ok("tokenize", "-m", MODEL, "--ids", stdin=text).decode().strip(), ids)
        lines = self.ok("tokenize", "-m", MODEL, "-f", path).decode().splitlines()
        self.assertEqual([line.split("->")[0].strip() for line in lines], ids.split(","))
        self.assertEqual(self.ok("tokenize", "-m", MODEL, "-p", "", "--ids"), b"\n")
        end = self.ok("tokenize", "-m", MODEL, "-p", "<|im_end|>", "--ids", "--parse-special").decode().strip()
        self.assertRegex(end, r"\A\d+\Z")
        self.assertEqual(self.ok("tokenize", "-m", MODEL, "--detokenize", end), b"")
        self.assertEqual(self.ok("tokenize", "-m", MODEL, "--detokenize", end, "--special"), b"<|im_end|>")
        self.assertEqual(self.ok("tokenize", "-m", MODEL, "-p", r"a\nb", "--ids", "-e"),
                         self.ok("tokenize", "-m", MODEL, "-p", "a\nb", "--ids"))


@needs_model
class Logits(Case):
    def read(self, path):
        with open(path, "rb") as f:
            data = f.read()
        self.assertEqual(data[:8], b"\x93NUMPY\x01\x00")
        (size,) = struct.unpack("<H", data[8:10])
        self.assertEqual((10 + size) % 64, 0)
        header = eval(data[10:10 + size], {})
        return header, data[10 + size:]

    def test(self):
        vocab = json.loads(self.ok("info", "--json", MODEL))
        path = os.path.join(self.folder(), "out.npy")
        self.ok("logits", "-m", MODEL, "--ids", "1,2, 3 4", "-o", path)
        header, data = self.read(path)
        self.assertEqual((header["descr"], header["fortran_order"], header["shape"][0]), ("<f4", False, 4))
        self.assertIn(header["shape"][1], vocab.values() if "vocab_size" not in vocab else [vocab["vocab_size"]])
        self.assertEqual(len(data), 4 * 4 * header["shape"][1])
        # Rows do not depend on what follows them, nor on threads or the layout of the weights.
        self.ok("logits", "-m", MODEL, "--ids", "1,2", "-o", path, "-t", "1", "--no-repack")
        self.assertEqual(self.read(path)[1], data[:len(data) // 2])
        self.assertEqual(os.listdir(os.path.dirname(path)), ["out.npy"])


@needs_model
class Info(Case):
    def test(self):
        description = json.loads(self.ok("info", MODEL, "--json"))
        self.assertEqual(description["architecture"], "llama")
        text = self.ok("info", "-m", MODEL, "-c", "1024").decode()
        self.assertRegex(text, r"(?m)^memory at -c 1024 +[\d.]+ MB")
        self.assertNotEqual(self.ok("info", MODEL, "-c", "1024", "--json"), self.ok("info", MODEL, "-c", "2048", "--json"))


class VocabularyOnly(Case):
    @unittest.skipUnless(VOCABULARIES, "../shared/data/vocab is absent")
    def test(self):
        for path in VOCABULARIES:
            with self.subTest(path=path):
                ids = self.ok("tokenize", "-m", path, "-p", "Hello world", "--ids").decode().strip()
                self.assertEqual(self.ok("tokenize", "-m", path, "--detokenize", ids).decode().strip(), "Hello world")
                self.assertIn("vocabulary only", self.ok("info", path).decode())
                self.assertIn("tokenizer", json.loads(self.ok("info", path, "--json")))
                self.refused(1, re.escape(os.path.basename(path)), "run", "-m", path, "-p", "a")


@needs_model
class Completion(Case):
    def test(self):
        greedy = ["run", "-m", MODEL, "-no-cnv", "--temp", "0", "-n", "8"]
        prompt = ["-p", "The capital of France is"]
        whole = self.ok(*greedy, *prompt).decode()
        self.assertTrue(whole.startswith("The capital of France is"))
        bare = self.ok(*greedy, *prompt, "--no-display-prompt").decode()
        self.assertEqual("The capital of France is" + bare, whole)
        ids = self.ok("tokenize", "-m", MODEL, *prompt, "--ids", "--special").decode().strip()
        self.assertEqual(self.ok(*greedy, "--prompt-ids", ids).decode(), whole)
        out = self.ok(*greedy, *prompt, "--output-ids").decode()
        self.assertRegex(out, r"\A\d+(,\d+){0,7}\n\Z")
        self.assertEqual(self.ok("tokenize", "-m", MODEL, "--detokenize", out).decode() + "\n", bare)
        self.assertEqual(self.ok(*greedy, "-f", self.file(b"The capital of France is\n")).decode(), whole)
        self.assertEqual(self.ok(*greedy, *prompt, "-t", "1", "-ub", "2").decode(), whole)
        self.assertNotIn("Paris", self.ok(*greedy, *prompt, "-r", "Paris", "--no-display-prompt").decode())
        self.refused(1, "5 tokens.*room for 2|context", *greedy, *prompt, "-c", "2")
        self.refused(2, "expected a prompt", *greedy)

    def test_context(self):
        greedy = ["run", "-m", MODEL, "-no-cnv", "--temp", "0", "--ignore-eos", "-p", "Once upon a time"]
        full = run(*greedy, "-c", "16", "--no-perf", "--output-ids")
        self.assertEqual(full.returncode, 0)
        self.assertRegex(full.stderr.decode(), r"^narrows: the context of 16 tokens is full: .*\n$")
        ids = full.stdout.decode().strip().split(",")
        shifted = self.ok(*greedy, "-c", "16", "-n", "40", "--context-shift", "--output-ids").decode().strip().split(",")
        self.assertEqual(len(shifted), 40)
        self.assertEqual(shifted[:len(ids)], ids)
        self.assertEqual(self.ok(*greedy, "-n", "0").decode(), "Once upon a time\n")
        for kv_type in ["f32", "q8_0"]:
            self.assertTrue(self.ok(*greedy, "-n", "8", "--kv-type", kv_type).decode().startswith("Once upon a time"))

    def test_seed(self):
        def sample(*flags):
            return self.ok("run", "-m", MODEL, "-no-cnv", "-p", "Once upon a time", "-n", "24", *flags)
        self.assertEqual(sample("-s", "3"), sample("-s", "3", "-t", "1"))
        self.assertNotEqual(sample("-s", "3"), sample("-s", "4"))
        self.assertEqual(len(self.ok("run", "-m", MODEL, "-no-cnv", "-p", "a", "-n", "40", "--ignore-eos", "--output-ids",
                                     "--temp", "1.5").decode().split(",")), 40)

    def test_statistics(self):
        error = run("run", "-m", MODEL, "-no-cnv", "-p", "a", "-n", "4").stderr.decode()
        self.assertRegex(error, r"\Anarrows: prompt \d+ tokens, [\d.]+ tokens/s; generated \d+ tokens, [\d.]+ tokens/s\n\Z")
        self.assertEqual(run("run", "-m", MODEL, "-no-cnv", "-p", "a", "-n", "4", "--no-perf").stderr, b"")

    def test_output_is_utf8(self):
        process = subprocess.Popen([NARROWS, "run", "-m", MODEL, "-p", "Write five emoji: 😀", "-n", "40", "-s", "1"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        pieces = []
        while piece := os.read(process.stdout.fileno(), 65536):
            pieces.append(piece)
        self.assertEqual(process.wait(), 0)
        process.stdout.close()
        self.assertGreater(len(pieces), 1, "streamed")


@needs_model
class ChatPiped(Case):
    def test(self):
        chat = ["run", "-m", MODEL, "--temp", "0", "-n", "24", "--no-perf", "-sys", "You are a helpful assistant"]
        one = self.ok(*chat, "-p", "What is the capital of France?").decode()
        self.assertIn("Paris", one)
        self.assertEqual(self.ok(*chat, stdin=b"What is the capital of France?\n").decode(), one)
        self.assertEqual(self.ok(*chat, "-cnv", "-st", stdin=b"What is the capital of France?\nAnd of Italy?\n").decode(), one)
        two = self.ok(*chat, stdin=b"What is the capital of France?\nAnd of Italy?\n").decode()
        self.assertTrue(two.startswith(one))
        self.assertGreater(len(two), len(one))
        other = self.ok(*chat[:-2], "-sys", "You are a pirate who speaks of nothing but his ship.", "-p",
                        "What is the capital of France?").decode()
        self.assertNotEqual(other, one)
        self.assertEqual(self.ok(*chat), b"")


@needs_model
class ChatTerminal(Case):
    """A conversation at a pseudo-terminal."""

    def start(self, *flags):
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.environ["TERM"] = "xterm"
            os.environ["LC_ALL"] = "C.UTF-8"
            os.execv(NARROWS, [NARROWS, "run", "-m", MODEL, *flags])
        self.pid, self.seen = pid, b""
        self.addCleanup(os.close, self.terminal)

    def until(self, pattern, timeout=120):
        """Reads until the pattern appears in what is new; returns what was read."""
        end = time.monotonic() + timeout
        while not (found := re.search(pattern, self.seen)):
            ready = select.select([self.terminal], [], [], max(0, end - time.monotonic()))[0]
            try:
                piece = os.read(self.terminal, 65536) if ready else b""
            except OSError:
                piece = b""
            if not piece:
                self.fail(f"waited for {pattern!r}, saw {self.seen!r}")
            self.seen += piece
        text, self.seen = self.seen[:found.end()], self.seen[found.end():]
        return text

    def prompt(self):
        """Waits for the prompt. It appears a moment before the editor takes the terminal over: what is typed in between
        is echoed twice, and Ctrl-C then would end the program."""
        self.until(rb"> ")
        end = time.monotonic() + 60
        while termios.tcgetattr(self.terminal)[3] & termios.ICANON:
            self.assertLess(time.monotonic(), end, "the editor did not start")
            time.sleep(0.001)

    def send(self, text):
        os.write(self.terminal, text)

    def ended(self):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if select.select([self.terminal], [], [], 0.05)[0]:
                try:
                    self.seen += os.read(self.terminal, 65536)  # a full terminal would keep it from ending
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.fail(f"the program did not end, saw {self.seen!r}")

    def test_ctrl_c_stops_the_answer(self):
        self.start("--temp", "0", "--ignore-eos")  # an answer without end
        self.prompt()
        self.send("Tell me a long story of a café.\n".encode())
        self.until(rb"caf\xc3\xa9\.\r\n")
        self.until(rb"\w+ \w+")
        self.send(b"\x03")
        self.until(rb"narrows: prompt \d+ tokens.*\r\n")
        self.prompt()
        self.send(b"/clear\n")
        self.prompt()
        self.send(b"\x1b[A\x1b[A\n")  # history: the first message again
        self.until(rb"caf\xc3\xa9\.\r\n")
        self.until(rb"\w+ \w+")
        self.send(b"\x03")
        self.until(rb"narrows: prompt \d+ tokens.*\r\n")
        self.prompt()
        self.send(b"\x03")
        self.assertEqual(self.ended(), 0)

    def test_ends(self):
        for last in [b"\x04", b"/exit\n"]:
            self.start("-n", "4", "-p", "Hi")
            self.until(rb"narrows: prompt \d+ tokens.*\r\n")
            self.prompt()
            self.send(last)
            self.assertEqual(self.ended(), 0)
        self.start("-n", "4", "-st", "-p", "Hi")
        self.assertEqual(self.ended(), 0)


TEXT = ("The city lies on the river, and its harbour has been in use since the ninth century. In winter the ice closes "
        "it for weeks, and goods come by rail from the south. ")


@needs_model
class Eval(Case):
    def test(self):
        path = self.file((TEXT * 3).encode())
        result = json.loads(self.ok("eval", "-m", MODEL, "-f", path, "--ctx", "32", "--json"))
        self.assertLess(1, result["perplexity"])
        self.assertLess(result["perplexity"], 60)
        self.assertGreater(result["tokens"], 60)
        cut = json.loads(self.ok("eval", "-m", MODEL, "-f", path, "--ctx", "32", "--max-tokens", "64", "--json"))
        self.assertEqual(cut["tokens"], 62)
        self.assertIn("perplexity", self.ok("eval", "-m", MODEL, "-f", path, "--ctx", "32").decode())
        scores = self.file(b"old")
        self.ok("eval", "-m", MODEL, "-f", path, "--ctx", "32", "--tokens", scores)
        with open(scores) as f:
            lines = [json.loads(line) for line in f]
        self.assertEqual(len(lines), result["tokens"])
        self.assertAlmostEqual(sum(s["log_likelihood"] for s in lines), result["log_likelihood"], places=2)
        self.assertEqual([s["position"] for s in lines[:3]], [1, 2, 3])
        self.assertEqual({s["likeliest"] for s in lines}, {True, False})

    def test_reference(self):
        path = self.file(TEXT.encode())
        same = json.loads(self.ok("eval", "-m", MODEL, "-f", path, "--json", "--reference", MODEL))
        self.assertEqual([same[k] for k in ["perplexity_ratio", "top1_agreement", "kl_mean", "weight_bytes_fraction",
                                            "kv_bytes_fraction"]], [1, 1, 0, 1, 1])


@needs_model
class Bench(Case):
    def test(self):
        flags = ["bench", "-m", MODEL, "-p", "32", "-n", "4", "-d", "0,16", "-t", "2", "-r", "2"]
        rows = json.loads(self.ok(*flags, "-o", "json"))
        self.assertEqual([(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in rows], [(32, 0, 0), (0, 4, 0), (0, 4, 16)])
        for row in rows:
            for field in ["model_filename", "model_type", "model_size", "model_n_params", "n_threads", "type_k", "type_v",
                          "test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts"]:
                self.assertIn(field, row)
            self.assertGreater(row["avg_ts"], 0)
            self.assertEqual(len(row["samples_ns"]), 2)
        self.assertGreater(rows[1]["bytes_per_token"], 1e7)
        self.assertGreater(rows[2]["bytes_per_token"], rows[1]["bytes_per_token"])
        self.assertGreater(rows[1]["bandwidth_fraction"], 0)
        self.assertEqual(self.ok(*flags, "-o", "csv").decode().count("\n"), 4)
        text = self.file((TEXT * 4).encode())
        self.assertEqual(self.ok(*flags, "-f", text).decode().count("\n"), 5)

        one, three = json.loads(self.ok("bench", "-m", MODEL, "-p", "0", "-n", "3", "-np", "1,3", "-r", "2", "--profile",
                                        "-o", "json"))
        self.assertEqual([one["n_parallel"], three["n_parallel"]], [1, 3])
        self.assertLess(three["bytes_per_token"], one["bytes_per_token"])
        head = [o for o in three["operations"] if o["operation"] == "head"][0]
        self.assertEqual(head["calls_per_step"], 1)
        self.assertGreater(head["bytes_per_step"], 1e7)
        self.assertIn("| gate, up |", self.ok("bench", "-m", MODEL, "-p", "16", "-n", "0", "-r", "1", "--profile").decode())
        self.refused(1, "expected at least", *flags, "-f", self.file(b"short"))


@needs_model
class Quantize(Case):
    def test(self):
        out = os.path.join(self.folder(), "out.gguf")
        self.ok("quantize", MODEL, out, "q8_0")
        self.assertGreater(os.path.getsize(out), os.path.getsize(MODEL))
        self.assertIn("Paris", self.ok("run", "-m", out, "-no-cnv", "-p", "The capital of France is", "--temp", "0", "-n", "8").decode())
        self.assertEqual(os.listdir(os.path.dirname(out)), ["out.gguf"])
        self.refused(2, "out.gguf", "quantize", out, out, "Q4_0")  # never over its own input
        result = json.loads(self.ok("eval", "-m", MODEL, "-f", self.file(TEXT.encode()), "--json", "--reference", out))
        self.assertLess(result["kl_mean"], 0.05)


class Convert(Case):
    """Hugging Face folders: as a file, and as the model of the other commands."""
    def test(self):
        tiny = os.path.join(SOURCE, "tests/data/hf/llama31")
        out = os.path.join(self.folder(), "out.gguf")
        self.assertIn("out.gguf", self.ok("convert", tiny, "-o", out).decode())
        described, folder = (json.loads(self.ok("info", model, "--json")) for model in (out, tiny + "/"))
        for key in ["name", "architecture", "parameters", "layers", "heads", "feed_forward_length", "tokenizer"]:
            self.assertEqual(described[key], folder[key], key)
        self.assertEqual(described["name"], "llama31")
        texts = [self.ok("run", "-m", model, "-no-cnv", "-p", "the hen", "-n", "12", "--temp", "0", "-c", "64")
                 for model in (out, tiny)]
        self.assertEqual(texts[0], texts[1])
        self.ok("convert", "-m", tiny, "--outfile", out, "--outtype", "q8_0", "--pure")
        self.assertIn("Q8_0", json.loads(self.ok("info", out, "--json"))["types"])
        error = run("convert", os.path.join(SOURCE, "tests/data/hf/qwen3"), "-o", out).stderr.decode()
        self.assertRegex(error, r"\Anarrows: the tokenizer is kept whole[^\n]*normalizer NFC\n\Z")
        self.refused(1, "expected a Hugging Face folder", "convert", out, "-o", out + "2")
        self.refused(2, "--type: expected F32, F16, BF16", "convert", tiny, "-o", out, "--type", "Q3_K")
        self.refused(2, "--output is required", "convert", tiny)
        copy = os.path.join(self.folder(), "copy")
        shutil.copytree(tiny, copy)
        for name in ["config.json", "model.safetensors"]:  # never over what is read
            self.refused(2, "expected another file than one of", "convert", copy, "-o", os.path.join(copy, name))
        self.refused(2, "expected another file than one of", "logits", "-m", copy, "--ids", "1", "-o", os.path.join(copy, "config.json"))
        self.ok("convert", copy, "-o", os.path.join(copy, "new.gguf"))
        self.assertEqual(json.loads(self.ok("info", copy, "--json"))["fingerprint"],
                         json.loads(self.ok("info", os.path.join(copy, "new.gguf"), "--json"))["fingerprint"])
        self.refused(1, "this one has no config.json", "convert", self.folder(), "-o", out)
        broken = os.path.join(self.folder(), "broken")
        shutil.copytree(tiny, broken)
        with open(os.path.join(broken, "model.safetensors"), "r+b") as f:
            f.truncate(2000)
        before = os.listdir(os.path.dirname(out))
        self.refused(1, "model.safetensors: ", "convert", broken, "-o", os.path.join(os.path.dirname(out), "no.gguf"))
        self.assertEqual(os.listdir(os.path.dirname(out)), before)


@needs_model
class QuantizeInterrupted(Case):
    def test(self):
        folder = self.folder()
        for sent in [signal.SIGINT, signal.SIGTERM]:
            process = subprocess.Popen([NARROWS, "quantize", MODEL, os.path.join(folder, "out.gguf"), "Q6_K", "1"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while not os.listdir(folder) and process.poll() is None:
                time.sleep(0.001)
            process.send_signal(sent)
            self.assertEqual(process.wait(60), -sent)
            self.assertEqual(os.listdir(folder), [])


@needs_model
class QuantizeFullDisk(Case):
    def test(self):
        folder = self.folder()
        # Writes beyond the limit fail as they do on a full disk (Python ignores SIGXFSZ, and so does its child here).
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, 10_000_000))
        self.refused(1, "out.gguf: cannot write", "quantize", MODEL, os.path.join(folder, "out.gguf"), "Q8_0",
                     preexec_fn=limit, restore_signals=False)
        self.assertEqual(os.listdir(folder), [])


class GsiReport(Case):
    TINY = os.path.join(SOURCE, "tests/data/models/llama-bias.gguf")

    def setUp(self):
        words = [f"{n * n % 9973:x}{chr(97 + n % 26)}" for n in range(40000)]
        self.held_out, self.other = (self.file(" ".join(w).encode()) for w in (words[:300], words[300:]))
        self.temporary = self.folder()
        self.environment = {**os.environ, "TMPDIR": self.temporary}
        self.command = ["gsi-report", "-m", self.TINY, "-f", self.held_out, "--calibration", self.other]
        self.small = ["-c", "100", "--k", "16,32", "--eps", "0.1,0.5", "--max-tokens", "200", "--calibration-tokens", "300"]

    def test(self):
        page = os.path.join(self.folder(), "report.html")
        text = self.ok(*self.command, *self.small, "--html", page, env=self.environment).decode()
        self.assertRegex(text, r"(?m)^paper +bases made from the very 100 tokens")
        self.assertRegex(text, r"(?m)^held-out +bases made from 300 tokens of another text")
        self.assertRegex(text, r"(?m)^ +12 static \| 100\.0% ")
        self.assertRegex(text, r"(?m)^blk\.0\.qkv +\| +32 ")
        with open(page) as f:
            self.assertIn("</html>", f.read())
        report = json.loads(self.ok(*self.command, *self.small, "--json", env=self.environment))
        self.assertEqual(list(report["protocols"]), ["paper", "held-out"])
        self.assertEqual(os.listdir(self.temporary), [])

    def test_refusals(self):
        model = self.command[:5]
        self.refused(2, "either --gsi or --calibration", *model)
        self.refused(2, "either --gsi or --calibration", *self.command, "--gsi", "x.gguf")
        for flags, pattern in [
            (["--k", "1024"], "--k 1024 needs -c 1024"),
            (["--k", "33", "--type", "q8_0"], "multiple of 32"),
            (["--k", "0"], "--k: .*found 0"),
            (["--eps", "-1"], "--eps: .*found -1"),
            (["--site-k", "100"], "--site-k 100: expected one of --k"),
            (["--site-eps", "0.3"], "--site-eps 0.3: expected one of --eps"),
            (["-c", "32"], "-c 32: expected at least 64"),
        ]:
            self.refused(2, pattern, *self.command, *flags)
        self.refused(1, "holds the beginning of the held-out text", *model, "--calibration", self.held_out, *self.small,
                     env=self.environment)
        self.refused(1, "expected at least a window of 9000", *self.command, "-c", "9000", "--k", "16", env=self.environment)
        self.refused(1, "cannot create", *self.command, "--html", "/nowhere/report.html", env=self.environment)
        self.assertEqual(os.listdir(self.temporary), [])

    def test_interrupted(self):
        page = os.path.join(self.folder(), "report.html")
        with subprocess.Popen([NARROWS, *self.command, "--calibration-tokens", "0", "--html", page], env=self.environment,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while not os.listdir(self.temporary) and process.poll() is None:
                time.sleep(0.01)
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=60), -signal.SIGTERM)
        self.assertEqual(os.listdir(self.temporary), [])
        self.assertEqual(os.listdir(os.path.dirname(page)), [])


class AdaReport(Case):
    TINY = os.path.join(SOURCE, "tests/data/models/llama-bias.gguf")

    def setUp(self):
        text = self.file(" ".join(f"{n * n % 97:x}{chr(97 + n % 26)}" for n in range(300)).encode())
        self.command = ["ada-report", "-m", self.TINY, "-f", text]
        self.small = ["-T", "40,100", "--windows", "2", "--tau", "0.3,0.6"]

    def test(self):
        folder = self.folder()
        page, data = os.path.join(folder, "report.html"), os.path.join(folder, "report.json")
        text = self.ok(*self.command, *self.small, "--html", page, "--json", data).decode()
        self.assertEqual(len(re.findall(r"(?m)^ +(40|100) +0\.[36] +2 \|.*\| yes$", text)), 4)
        self.assertRegex(text, r"(?m)^T 100, tau 0\.6$")
        with open(page) as f:
            self.assertIn("</html>", f.read())
        with open(data) as f:
            written = json.load(f)
        printed = json.loads(self.ok(*self.command, *self.small, "--json", "-", "-t", "1"))
        self.assertEqual([(s["tokens"], s["tau"]) for s in printed["settings"]], [(40, 0.3), (40, 0.6), (100, 0.3), (100, 0.6)])
        for a, b in zip(written["settings"], printed["settings"]):
            for x, y in zip(a["layers"], b["layers"]):
                for key in x:
                    if "seconds" not in key:
                        self.assertEqual(x[key], y[key], key)
        self.assertEqual(sorted(os.listdir(folder)), ["report.html", "report.json"])
        defaults = json.loads(self.ok(*self.command, "-T", "64", "--json", "-"))
        self.assertEqual([s["tau"] for s in defaults["settings"]], [0.2, 0.3, 0.5])

    def test_eval(self):
        evaluate = ["eval", *self.command[1:], "-c", "64", "--json"]
        dense, off, sparse = (json.loads(self.ok(*evaluate, *flags)) for flags in
                              ([], ["--ada", "paper", "--tau", "0"], ["--ada", "paper", "--tau", "0.5"]))
        self.assertEqual(dense, off)
        self.assertNotEqual(dense["perplexity"], sparse["perplexity"])
        self.refused(2, "--tau needs --ada", *evaluate, "--tau", "0.3")
        self.refused(2, "exclude each other", *evaluate, "--ada", "kv", "--tau", "0.3", "--kv-budget", "0.5")
        for tau in ["0", "-1", "2", "nan"]:
            self.refused(2, "--tau: expected more than 0", *evaluate, "--ada", "kv", "--tau", tau)
        for tau in ["1", "-1", "nan"]:
            self.refused(2, "--tau: .*less than 1", *evaluate, "--ada", "paper", "--tau", tau)
        self.refused(2, "--ada: .*magic", *evaluate, "--ada", "magic")
        self.refused(2, "exclude each other", *evaluate, "--ada", "paper", "-ctk", "q8_0")

    def test_refusals(self):
        folder = self.folder()
        out = os.path.join(folder, "report.html")
        for flags, pattern in [
            (["--tau", "0"], "--tau: .*nothing is selected"),
            (["--tau", "1"], "--tau: .*less than 1, found 1"),
            (["--tau", "0.3,nan"], "--tau: .*nan"),
            (["--tau", "x"], "--tau"),
            (["-T", "1"], "--tokens: .*found 1"),
            (["--windows", "0"], "--windows: .*found 0"),
            (["--rounds", "0"], "--rounds: .*found 0"),
            (["--html", out, "--json", out], "expected two files"),
        ]:
            self.refused(2, pattern, *self.command, *flags)
        self.refused(2, "--file is required", *self.command[:3])
        self.refused(1, "expected at most 256, the context it was trained on, found 9000", *self.command, "-T", "9000", "--html", out)
        self.refused(1, "the text has 2 tokens: expected at least T, 40", *self.command[:3], "-f", self.file(b"ab"), "-T", "40",
                     "--html", out)
        self.refused(1, "cannot create", *self.command, "--html", "/nowhere/report.html")
        self.refused(1, "cannot create", *self.command, "--json", "/nowhere/report.json")
        self.assertEqual(os.listdir(folder), [])


class Methods(Case):
    TINY = os.path.join(SOURCE, "tests/data/models/llama-bias.gguf")

    def setUp(self):
        self.text = self.file(" ".join(f"{n * n % 9973:x}{chr(97 + n % 26)}" for n in range(600)).encode())

    def calibrated(self, *flags):
        bases = os.path.join(self.folder(), "bases.gguf")
        report = json.loads(self.ok("calibrate", "-m", self.TINY, "-f", self.text, "-o", bases, "--json", *flags))
        return bases, report

    def test_calibrate(self):
        bases, report = self.calibrated("--method", "cascade", "-k", "16,down=8,head=0")
        self.assertEqual([s["site"] for s in report["sites"]][:4], ["blk.0.qkv", "blk.0.o", "blk.0.up", "blk.0.down"])
        self.assertEqual(len(report["sites"]), 8)
        for key in ["svd_seconds", "svd_flops", "similarity", "storage_overhead", "peak_bytes", "seconds"]:
            self.assertIn(key, report)
        bases, _ = self.calibrated()
        evaluate = ["eval", "-m", self.TINY, "-f", self.text, "-c", "100", "--max-tokens", "300", "--json"]
        dense = json.loads(self.ok(*evaluate))["perplexity"]
        shut = json.loads(self.ok(*evaluate, "--gsi", bases, "--eps", "0", "--reference", self.TINY))
        self.assertEqual((shut["perplexity"], shut["weight_bytes_fraction"]), (dense, 1))
        static = json.loads(self.ok(*evaluate, "--gsi", bases, "--eps", "inf", "--k", "8"))
        self.assertNotEqual(static["perplexity"], dense)
        self.ok("calibrate", "-m", self.TINY, "-f", self.text, "-o", bases)  # the table

    def test_refusals(self):
        bases, _ = self.calibrated()
        folder = self.folder()
        none = os.path.join(folder, "none.gguf")
        calibrate = ["calibrate", "-m", self.TINY, "-o", none, "-f"]
        self.refused(1, "expected at least k", *calibrate, self.file(b"a few"))
        self.refused(1, "no tokens", *calibrate, self.file(b""))
        self.refused(1, "sites: .*found attn", *calibrate, self.text, "--sites", "attn")
        self.refused(2, "-k: expected", *calibrate, self.text, "-k", "many")
        self.refused(2, "--method", *calibrate, self.text, "--method", "best")
        run_it = ["eval", "-f", self.text, "-m"]
        other = os.path.join(SOURCE, "tests/data/models/llama-gqa.gguf")
        self.refused(1, "made for llama-bias.gguf", *run_it, other, "--gsi", bases)
        self.refused(1, "not a file of bases", *run_it, self.TINY, "--gsi", self.TINY)
        self.refused(1, "directions of the file", *run_it, self.TINY, "--gsi", bases, "--k", "5000")
        self.refused(2, "--eps", *run_it, self.TINY, "--gsi", bases, "--eps", "-1")
        self.refused(2, "need --gsi", *run_it, self.TINY, "--eps", "0.1")
        self.refused(2, "exclude each other", *run_it, self.TINY, "--gsi", bases, "--plan", "p.json")
        self.refused(1, "p.json: cannot open", *run_it, self.TINY, "--plan", os.path.join(folder, "p.json"))
        self.refused(1, "not a plan", *run_it, self.TINY, "--plan", self.text)
        tune = ["tune", "-m", self.TINY, "-f", self.text, "-o", os.path.join(folder, "plan.json")]
        self.refused(2, "--budget: expected", *tune, "--budget", "speed=2")
        self.refused(2, "--budget: expected a number", *tune, "--budget", "ppl=low")
        self.refused(1, "above 1", *tune, "--budget", "ppl=0.5")
        self.refused(1, "expected at least", *tune)
        self.refused(1, "quantize it first", *tune, "--sensitivity-tokens", "16", "--search-tokens", "16",
                     "--validation-tokens", "16", "-p", "4", "-n", "4")
        self.assertEqual(os.listdir(folder), [])
        plan = os.path.join(folder, "plan.json")
        self.refused(1, "found a GGUF file", *calibrate, self.TINY)
        self.refused(1, "zero byte at 1", *tune[:4], self.file(b"a\0b"), "-o", plan)
        self.refused(1, "cannot create", *calibrate[:3], "-f", self.text, "-o", "/nowhere/bases.gguf")
        self.refused(1, "found a directory", *run_it, self.TINY, "--plan", folder)
        self.refused(1, "give it with --gsi", *run_it, bases)

    def test_inputs_are_not_overwritten(self):
        model = os.path.join(self.folder(), "model.gguf")
        shutil.copy(self.TINY, model)
        link = os.path.join(os.path.dirname(model), "link")
        os.symlink(self.text, link)
        bases, _ = self.calibrated()
        for command in [["calibrate"], ["tune", "--gsi", bases]]:
            for output in [model, self.text, link] + command[2:]:
                self.refused(2, "which is read", command[0], "-m", model, "-f", self.text, "-o", output, *command[1:])
        self.refused(2, "which is read", "gsi-report", "-m", model, "-f", self.text, "--gsi", bases, "--html", bases)
        self.refused(2, "which is read", "ada-report", "-m", model, "-f", self.text, "--json", self.text)
        self.refused(2, "which is read", "eval", "-m", model, "-f", self.text, "--gsi", bases, "--tokens", bases)
        plan = self.file(json.dumps({"narrows_plan": 1, "model": "x", "model_name": "m", "bases": bases, "sites": {}}).encode())
        for output in [plan, bases]:
            self.refused(2, "which is read", "eval", "-m", model, "-f", self.text, "--plan", plan, "--tokens", output)
        self.refused(1, "found a directory", "eval", "-m", model, "-f", self.text, "--tokens", self.folder())
        self.refused(2, "expected a name", "calibrate", "-m", model, "-f", self.text, "-o", "")
        self.assertTrue(filecmp.cmp(model, self.TINY, shallow=False))


class Compress(Case):
    TINY = os.path.join(SOURCE, "tests/data/models/llama-bias.gguf")

    def setUp(self):
        self.text = self.file(" ".join(f"{n * n % 9973:x}{chr(97 + n % 26)}" for n in range(600)).encode())
        self.out = os.path.join(self.folder(), "out.gguf")
        self.command = ["compress", "-m", self.TINY, "-f", self.text, "-o", self.out]

    def test(self):
        report = json.loads(self.ok(*self.command, "--ratio", "0.25", "--allocate", "uniform", "--json"))
        self.assertGreaterEqual(report["removed"], 0.25)
        self.assertEqual(report["file_bytes"], os.path.getsize(self.out))
        for key in ["tokens", "seconds", "peak_bytes", "parameters", "parameters_before"]:
            self.assertGreater(report[key], 0)
        info = json.loads(self.ok("info", self.out, "--json"))
        self.assertEqual(info["head_dimensions"], report["layers"][0]["d_qk"])
        evaluate = ["eval", "-f", self.text, "-c", "100", "--max-tokens", "300", "--json", "-m"]
        result = json.loads(self.ok(*evaluate, self.out, "--reference", self.TINY))
        self.assertGreater(result["kl_mean"], 0)
        for flags in [["--kv-type", "q8_0"], ["--ada", "kv", "--kv-budget", "0.5"], ["--ada", "paper"]]:
            self.ok(*evaluate, self.out, *flags)
        self.ok("quantize", self.out, self.file(b"", "small.gguf"), "q8_0")
        self.assertIn("removed", self.ok(*self.command, "--qk", "0", "--ov", "0.5", "--mlp", "0.1", "--type", "q8_0").decode())
        self.assertEqual(os.listdir(os.path.dirname(self.out)), ["out.gguf"])

    def test_portable_and_ranks(self):
        first = self.ok(*self.command, "--ratio", "0.2", "--portable", "--json")
        self.assertNotIn("rope.pairs", self.ok("info", self.out, "--json").decode())
        whole = open(self.out, "rb").read()
        report = self.file(first, "report.json")
        self.refused(2, "go without it", *self.command, "--ranks", report, "--ratio", "0.2")
        self.refused(2, "which is read", "compress", "-m", self.TINY, "-f", self.text, "--ranks", report, "-o", report)
        self.refused(1, "no report of narrows compress", *self.command, "--ranks", self.file(b"{}"))
        self.refused(1, "no report of narrows compress", *self.command, "--ranks", self.text)
        self.refused(2, "takes --ratio alone", *self.command, "--ratio", "0.3", "--method", "svd", "--portable")
        self.refused(2, "--portable takes", *self.command, "--ratio", "0.3", "--portable", "--qk", "0.1")
        self.refused(2, "--portable takes", *self.command, "--ratio", "0.3", "--portable", "--mlp", "0.1")
        self.assertIn("removed", self.ok(*self.command, "--ratio", "0.2", "--portable", "--qk", "0.25", "--ov", "0.25").decode())
        layers = json.loads(self.ok(*self.command, "--ranks", report, "--json"))["layers"]
        sizes = lambda layers: [[layer[key] for key in ["d_qk", "d_vo", "d_inter"]] for layer in layers]
        self.assertEqual(sizes(layers), sizes(json.loads(first)["layers"]))
        self.assertGreater(len(whole), 0)

    def test_thin_maps(self):
        for method in ["svd", "asvd", "svd-llm"]:
            result = run(*self.command, "--ratio", "0.3", "--method", method, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(b"no smaller", result.stderr)
            self.assertGreater(json.loads(result.stdout)["removed"], 0.29)
            self.ok("info", self.out)
        self.refused(2, "takes --ratio alone", *self.command, "--ratio", "0.3", "--method", "svd", "--qk", "0.1")

    def test_cache_baselines(self):
        result = run(*self.command, "--ratio", "0.3", "--method", "palu", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(b"no smaller", result.stderr)
        report = json.loads(result.stdout)
        self.assertAlmostEqual(report["cache"], 0.7, delta=0.05)
        self.assertLessEqual(report["cache"], 0.7)
        self.assertIsNone(report["layers"][0]["qk_loss"])
        clover = [*self.command[:3], *self.command[5:], "--ratio", "0.3", "--method", "clover"]
        self.assertRegex(self.ok(*clover).decode(), r"[\d.]+ % of the key/value cache left")
        report = json.loads(self.ok(*clover, "-f", "/absent", "--json"))
        self.assertLessEqual(report["cache"], 0.7)
        self.assertGreater(report["removed"], 0)
        info = json.loads(self.ok("info", self.out, "--json"))
        self.assertEqual(info["head_dimensions"], report["layers"][0]["d_qk"])
        for method in ["palu", "clover"]:
            for flags in [["--qk", "0.1"], ["--allocate", "mixed"], ["--refit", "off"], ["--neurons", "up"]]:
                self.refused(2, "takes --ratio alone", *self.command, "--ratio", "0.3", "--method", method, *flags)
        self.refused(2, "--file is required", *clover[:-1], "palu")

    def test_refusals(self):
        self.refused(2, "--ratio is required", *self.command)
        self.refused(2, "--ratio is required", *self.command, "--qk", "0.1", "--ov", "0.1")
        for ratio in ["0", "1", "-0.1", "2", "nan"]:
            self.refused(2, "--ratio: expected a number above 0 and below 1", *self.command, f"--ratio={ratio}")
        self.refused(2, "--mlp: expected a number of at least 0 and below 1", *self.command, "--ratio", "0.1", "--mlp", "1")
        self.refused(2, "--type: expected F32, F16", *self.command, "--ratio", "0.1", "--type", "iq4_xs")
        self.refused(2, "--refit: expected", *self.command, "--ratio", "0.1", "--refit", "-1")
        flags = ["--ratio", "0.1", "-o", self.out]
        self.refused(1, "no tokens", "compress", "-m", self.TINY, "-f", self.file(b""), *flags)
        self.refused(1, "zero byte at 1", "compress", "-m", self.TINY, "-f", self.file(b"a\0b"), *flags)
        self.refused(1, "cannot open", "compress", "-m", "absent.gguf", "-f", self.text, *flags)
        self.refused(1, "cannot create", *self.command[:5], "--ratio", "0.1", "-o", "/nowhere/out.gguf")
        model = os.path.join(self.folder(), "model.gguf")
        shutil.copy(self.TINY, model)
        link = os.path.join(os.path.dirname(model), "link")
        os.symlink(model, link)
        for output in [model, link, self.text]:
            self.refused(2, "which is read", "compress", "-m", model, "-f", self.text, "--ratio", "0.1", "-o", output)
        self.assertTrue(filecmp.cmp(model, self.TINY, shallow=False))
        self.assertEqual(os.listdir(os.path.dirname(self.out)), [])

    def test_few_tokens(self):
        result = run("compress", "-m", self.TINY, "-f", self.file(b"a few"), "--ratio", "0.1", "-o", self.out)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, rb"\Anarrows: the text has \d+ tokens, fewer than [^\n]*\n\Z")

    def test_full_disk(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        self.refused(1, "out.gguf: cannot write", *self.command, "--ratio", "0.1", preexec_fn=limit, restore_signals=False)
        self.assertEqual(os.listdir(os.path.dirname(self.out)), [])


class CompressResume(Case):
    TINY = os.path.join(SOURCE, "tests/data/models/llama-bias.gguf")

    def setUp(self):
        self.text = self.file(" ".join(f"{n * n % 9973:x}{chr(97 + n % 26)}" for n in range(3000)).encode())
        self.folder_ = self.folder()
        self.out = os.path.join(self.folder_, "out.gguf")
        self.command = ["compress", "-m", self.TINY, "-f", self.text, "-o", self.out, "--ratio", "0.1", "--allocate", "uniform",
                        "--max-tokens", "0", "-t", "1"]
        whole = os.path.join(self.folder(), "whole.gguf")
        self.ok(*self.command, "-o", whole)
        with open(whole, "rb") as f:
            self.whole = f.read()

    def goes_on(self, layers):
        """The run that an earlier one prepared: as many layers are there as it said, or the one that it was writing too."""
        self.assertEqual(os.listdir(self.folder_), ["out.gguf.partial"])
        result = run(*self.command, "--resume")
        self.assertEqual(result.returncode, 0, result.stderr)
        found = re.fullmatch(r"(?:narrows: [^\n]*out\.gguf\.partial: layers 0 to (\d+) are finished\n)?", result.stderr.decode())
        self.assertTrue(found, result.stderr)
        self.assertIn(int(found[1]) + 1 if found[1] else 0, [layers, layers + 1])
        self.assertEqual(os.listdir(self.folder_), ["out.gguf"])
        with open(self.out, "rb") as f:
            self.assertEqual(f.read(), self.whole)
        os.remove(self.out)

    def test_whole(self):
        self.assertEqual(run(*self.command, "--resume").stderr, b"")
        self.assertEqual(os.listdir(self.folder_), ["out.gguf"])
        with open(self.out, "rb") as f:
            self.assertEqual(f.read(), self.whole)

    def interrupt(self, sent, flags, wanted):
        """Ends a run as soon as a file of at least `wanted` bytes is there (0: at once); what it says."""
        for _ in range(5):  # on a busy machine the run may end before the signal comes
            with subprocess.Popen([NARROWS, *self.command, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
                partial = self.out + ".partial"
                while wanted and process.poll() is None and not (os.path.exists(partial) and os.path.getsize(partial) >= wanted):
                    time.sleep(0.001)
                if not wanted:
                    time.sleep(0.1)
                process.send_signal(sent)
                error = process.stderr.read().decode()
                if process.wait(60) != 0:
                    self.assertEqual(process.returncode, -sent)
                    return error
            os.remove(self.out)
        self.fail("the run always ends before it can be interrupted")

    def test_interrupted(self):
        for sent in [signal.SIGINT, signal.SIGTERM]:
            for wanted in [1, 20_000]:
                error = self.interrupt(sent, ["--resume"], wanted)
                found = re.fullmatch(r"narrows: interrupted: the same command goes on from layer ([01])\n", error)
                self.assertTrue(found, error)
                self.goes_on(int(found[1]))
        error = self.interrupt(signal.SIGINT, [], 0)
        self.assertEqual(error, "")
        self.assertEqual(os.listdir(self.folder_), [])

    def test_full_disk(self):
        for size, pattern, layers in [(60_000, r"out\.gguf\.partial: cannot write: [^;]*; the same command goes on from layer 1", 1),
                                      (90_000, r"out\.gguf: cannot write: [^;]*; the same command writes the file of the 2", 2)]:
            limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            self.refused(1, pattern, *self.command, "--resume", preexec_fn=limit, restore_signals=False)
            self.goes_on(layers)

    def test_refusals(self):
        self.interrupt(signal.SIGINT, ["--resume"], 20_000)
        partial = self.out + ".partial"
        with open(partial, "rb") as f:
            before = f.read()
        self.refused(1, r"out\.gguf\.partial: of a run with another share of neurons: 0\.1, now 0\.2", *self.command, "--mlp", "0.2",
                     "--resume")
        self.refused(1, r"out\.gguf\.partial: of a run with another text", *self.command, "-f", self.file(b"other"), "--resume")
        self.refused(2, "which is read", *self.command, "-f", partial, "--resume")
        with open(partial, "rb") as f:
            self.assertEqual(f.read(), before)
        with open(partial, "wb") as f:
            f.write(b"mine")
        self.refused(1, "found another file", *self.command, "--resume")
        with open(partial, "rb") as f:
            self.assertEqual(f.read(), b"mine")
        for method in ["svd", "asvd", "svd-llm", "palu", "clover"]:
            self.refused(2, f"--resume goes with --method a3, not with {method}", *self.command[:7], "--ratio", "0.1", "--method",
                         method, "--resume")
        self.refused(2, "expected a file to write", *self.command, "-o", "/dev/null", "--resume")


class CompressedCache(Case):
    """--ada kv and --kv-policy on run, bench and eval."""
    TINY = os.path.join(SOURCE, "tests/data/models/llama-bias.gguf")

    def setUp(self):
        self.text = self.file(" ".join(f"{n * n % 9973:x}{chr(97 + n % 26)}" for n in range(600)).encode())
        self.evaluate = ["eval", "-m", self.TINY, "-f", self.text, "-c", "256", "--max-tokens", "512", "--json"]

    def test_eval(self):
        dense = json.loads(self.ok(*self.evaluate))
        whole = json.loads(self.ok(*self.evaluate, "--ada", "kv", "--kv-budget", "1"))
        self.assertEqual(whole["perplexity"], dense["perplexity"])
        once = ["--compress-at", "192", "--window", "16", "--reference", self.TINY]
        for policy in ["representatives", "streaming", "h2o", "snapkv", "snapkv-merge"]:
            result = json.loads(self.ok(*self.evaluate, *once, "--kv-policy", policy, "--kv-budget", "0.5"))
            self.assertEqual(result["tokens"], 2 * (256 - 193))
            self.assertGreater(result["kl_mean"], 0, policy)
            self.assertLessEqual(result["kv_bytes_fraction"], 0.5, policy)
        fine, coarse = [json.loads(self.ok(*self.evaluate, "--reference", self.TINY, "--ada", "kv", "--tau", tau, "--window", "16"))
                        for tau in ["0.05", "0.5"]]
        self.assertLess(coarse["kv_bytes_fraction"], fine["kv_bytes_fraction"])
        self.assertLess(fine["kl_mean"], coarse["kl_mean"])
        plain = json.loads(self.ok(*self.evaluate, *once, "--ada", "kv", "--kv-budget", "0.5"))
        named = json.loads(self.ok(*self.evaluate, *once, "--kv-policy", "representatives", "--kv-budget", "0.5", "-t", "1"))
        self.assertEqual(plain, named)

    def test_too_short_for_the_budget(self):
        result = run(*self.evaluate, "--ada", "kv", "--kv-budget", "0.01")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stderr.decode(), "the cache stays dense: 256 tokens are too few")

    def test_plan(self):
        model = json.loads(self.ok("info", self.TINY, "--json"))["fingerprint"]
        plan = self.file(json.dumps({"narrows_plan": 1, "model": model, "model_name": "m", "sites": {}, "cache": {"tau": 0.4}}).encode())
        by_plan = self.ok(*self.evaluate, "--plan", plan)
        self.assertEqual(by_plan, self.ok(*self.evaluate, "--ada", "kv", "--tau", "0.4"))
        self.assertEqual(self.ok(*self.evaluate, "--plan", plan, "--window", "32"),
                         self.ok(*self.evaluate, "--ada", "kv", "--tau", "0.4", "--window", "32"))
        dense = self.ok(*self.evaluate)
        self.assertNotEqual(by_plan, dense)
        self.assertEqual(self.ok(*self.evaluate, "--plan", plan, "--kv-budget", "1"), dense)

    def test_run_and_bench(self):
        bench = json.loads(self.ok("bench", "-m", self.TINY, "-p", "0", "-n", "8", "-d", "192", "-r", "1", "-o", "json",
                                   "--ada", "kv", "--window", "16"))
        self.assertEqual(len(bench), 1)
        run = ["run", "-m", self.TINY, "-f", self.text, "-n", "8", "--temp", "0", "-c", "4096", "-no-cnv"]
        self.assertEqual(self.ok(*run, "--ada", "kv", "-t", "1"), self.ok(*run, "--ada", "kv", "-t", "2"))

    def test_refusals(self):
        for budget in ["0", "-1", "1.5", "nan"]:
            self.refused(2, "--kv-budget: expected more than 0", *self.evaluate, "--ada", "kv", "--kv-budget", budget)
        self.refused(2, "--kv-budget needs --ada kv", *self.evaluate, "--kv-budget", "0.5")
        self.refused(2, "--window needs --ada kv", *self.evaluate, "--window", "64")
        self.refused(2, "--window: expected a multiple of 16", *self.evaluate, "--ada", "kv", "--window", "40")
        self.refused(2, "--kv-policy", *self.evaluate, "--kv-policy", "best")
        self.refused(1, "compress at: expected more than", *self.evaluate, "--ada", "kv", "--compress-at", "10")
        self.refused(2, "exclude each other", *self.evaluate, "--ada", "kv", "--kv-policy", "h2o")
        self.refused(2, "--compress-at", *self.evaluate, "--ada", "kv", "--compress-at", "255")


class Example(Case):
    """Installs narrows into a folder of its own and builds the example against it."""

    def test(self):
        prefix, build = self.folder(), self.folder()
        source = os.environ["NARROWS_SOURCE"]

        def command(*arguments):
            result = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual(result.returncode, 0, result.stdout.decode(errors="replace"))
            return result.stdout.decode(errors="replace")

        command("cmake", "--install", os.environ["NARROWS_BUILD"], "--prefix", prefix)
        for header in glob.glob(os.path.join(source, "include/narrows/*.h")):
            self.assertTrue(os.path.exists(os.path.join(prefix, "include/narrows", os.path.basename(header))))
        with open(os.path.join(source, "examples/minimal.cc")) as f:
            self.assertLess(len(f.readlines()), 40)
        command("cmake", "-S", os.path.join(source, "examples"), "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
        command("cmake", "--build", build)
        if os.path.exists(MODEL):
            question = "Name three rivers."
            self.assertEqual(command(os.path.join(build, "minimal"), MODEL, question),
                             self.ok("run", "-m", MODEL, "-p", question, "--temp", "0", "-n", "100").decode())


def main():
    suite = unittest.TestLoader().loadTestsFromName(sys.argv[1], sys.modules[__name__])
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    if not result.wasSuccessful():
        return 1
    return 77 if result.skipped and len(result.skipped) == result.testsRun else 0


sys.exit(main())
