"""The model under study: its linear sites, its texts, what is measured on calibration text, and the evaluation."""
import math
import pathlib
import subprocess
import tempfile

import gguf
import torch

import wikitext
from reference import ToolError, existing_file, hf, narrows

from .formats import Q8_BITS, q8

CONTEXT = 512
CALIBRATION_WINDOWS = 16  # 8192 tokens
FISHER_WINDOWS = 4
SAMPLE_STRIDE = 16        # every 16th calibration token is kept as it is, at every site
NOISE_TOKENS = 256
NOISE = 0.05              # standard deviation, of the output's rms
KL_STRIDE = 4             # the KL divergence is measured at every fourth position
PIECE = 64                # positions whose logits exist at the same time

_KINDS = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "o_proj": "o", "gate_proj": "up", "up_proj": "up",
          "down_proj": "down"}
KINDS = ("qkv", "o", "up", "down", "head")


class Site:
    """Linear maps that read the same activation, stacked: weight is rows x d. What a method reads is tallied here."""

    def __init__(self, name, kind, layer, weight, bias=None, norm=None):
        self.name, self.kind, self.layer, self.weight, self.bias, self.norm = name, kind, layer, weight, bias, norm
        self.rows, self.d = weight.shape
        self.dense_bits = Q8_BITS * self.rows * self.d
        self.reset()

    def reset(self):
        self.tokens = self.bits = self.helper_bits = 0

    def read(self, bits, helper_bits=0):
        """Bits of weights, of their images or of low-rank factors; and of what only the method needs."""
        self.bits += bits
        self.helper_bits += helper_bits

    def tally(self):
        return self.tokens, self.bits, self.helper_bits

    def dense(self, x):
        return torch.nn.functional.linear(x, self.weight)


class _Slice(torch.nn.Module):
    """Stands where one map of a site was; the first that is called computes them all."""

    def __init__(self, subject, site, begin, end):
        super().__init__()
        self.subject, self.site, self.begin, self.end = subject, site, begin, end

    def forward(self, x):
        if self.begin == 0:
            self.site.y = self.subject.apply(self.site, x[0])
        y = self.site.y[None, :, self.begin:self.end]
        if self.end == self.site.rows and not self.subject.recording:
            self.site.y = None
        return y


class Subject:
    def __init__(self, path, narrows_binary, windows, texts):
        self.path = path
        self.model = hf.load(path)
        self.model.config._attn_implementation = "sdpa"
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        self.method, self.recording, self.observer = None, False, None
        self.architecture = self.model.config.model_type
        self.softcap = getattr(self.model.config, "final_logit_softcapping", None)
        self._make_sites()
        fields = {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()
                  if key in ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id")}
        self.first = [fields["tokenizer.ggml.bos_token_id"]] if fields.get("tokenizer.ggml.add_bos_token") else []
        existing_file(narrows_binary, "the narrows program; build it, or name it with --narrows")
        self.calibration = self._windows(narrows_binary, texts[0], CALIBRATION_WINDOWS)
        self.held_out = self._windows(narrows_binary, texts[1], None)
        self.test = self.held_out[:windows]
        self.reference = {}

    def _make_sites(self):
        model, self.sites = self.model.model, []
        for number, layer in enumerate(model.layers):
            post = getattr(layer, "pre_feedforward_layernorm", layer.post_attention_layernorm)
            for parent, names, norm in ((layer.self_attn, ("q_proj", "k_proj", "v_proj"), layer.input_layernorm),
                                        (layer.self_attn, ("o_proj",), None),
                                        (layer.mlp, ("gate_proj", "up_proj"), post), (layer.mlp, ("down_proj",), None)):
                maps = [getattr(parent, name) for name in names]
                biases = [m.bias for m in maps if m.bias is not None]
                kind = _KINDS[names[0]]
                site = Site(f"{number}.{kind}", kind, number, q8(torch.cat([m.weight for m in maps])),
                            torch.cat(biases) if biases else None, self._norm_weight(norm))
                begin = 0
                for name, m in zip(names, maps):
                    setattr(parent, name, _Slice(self, site, begin, begin + m.weight.shape[0]))
                    begin += m.weight.shape[0]
                self.sites.append(site)
        embedding = model.embed_tokens.weight
        tied = self.model.lm_head.weight is embedding
        head = q8(self.model.lm_head.weight)
        if tied:
            embedding.data = head
        self.model.lm_head = None
        self.head = Site("head", "head", len(model.layers), head, None, self._norm_weight(model.norm))
        self.sites.append(self.head)
        self.dense_bits = sum(site.dense_bits for site in self.sites)

    def _norm_weight(self, norm):
        if norm is None:
            return None
        return (norm.weight + 1 if self.architecture.startswith("gemma3") else norm.weight).detach().clone()

    def _windows(self, binary, source, count):
        text = wikitext.normalise(existing_file(source, "WikiText-2").read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "text.txt"
            path.write_text(text, encoding="utf-8", newline="\n")
            done = subprocess.run([str(binary), "tokenize", "-m", self.path, "-f", str(path), "--ids"],
                                  capture_output=True, text=True)
        if done.returncode:
            raise ToolError(f"{binary} tokenize: {done.stderr.strip()}")
        ids = [int(word) for word in done.stdout.replace(",", " ").split()]
        if self.first and ids[0] == self.first[0]:
            ids = ids[1:]
        taken = CONTEXT - len(self.first)
        whole = len(ids) // taken
        count = whole if count is None else min(count, whole)
        return [torch.tensor(self.first + ids[i * taken:(i + 1) * taken]) for i in range(count)]

    # ---- running ----

    def apply(self, site, x):
        """y of a site for the tokens x, by the method installed or densely; its bytes go to the site's tally."""
        if self.observer:
            self.observer(site, x)
        if self.method is None:
            y = site.dense(x)
        else:
            y = self.method.forward(site, x)
            site.tokens += len(x)
        if site.bias is not None:
            y = y + site.bias
        if self.recording:
            y.retain_grad()
            site.outputs.append(y)
        return y

    def body(self, window):
        """The head's inputs."""
        return self.model.model(input_ids=window[None], use_cache=False).last_hidden_state[0]

    def logits(self, hidden):
        return self.cap(self.apply(self.head, hidden))

    def cap(self, logits):
        return logits if not self.softcap else torch.tanh(logits / self.softcap) * self.softcap

    def score(self, window, dense_hidden=None):
        """-log p and arg max of each prediction of tokens 2 to the last; KL(dense || this) of every fourth, if the
        head's inputs in the dense model are given; the head's inputs."""
        hidden, targets, nll, top, kl = self.body(window)[:-1], window[1:], [], [], [torch.zeros(0)]
        for begin in range(0, len(targets), PIECE):
            logits = self.logits(hidden[begin:begin + PIECE])
            nll.append(torch.nn.functional.cross_entropy(logits, targets[begin:begin + PIECE], reduction="none"))
            top.append(logits.argmax(-1))
            if dense_hidden is not None:
                ours = torch.log_softmax(logits[KL_STRIDE - 1::KL_STRIDE], -1)
                dense = self.head.dense(dense_hidden[begin + KL_STRIDE - 1:begin + PIECE:KL_STRIDE])
                dense = torch.log_softmax(self.cap(dense), -1)
                kl.append((dense.exp() * (dense - ours)).sum(-1))
        return torch.cat(nll).double(), torch.cat(top), torch.cat(kl), hidden

    def reference_of(self, index):
        if index not in self.reference:
            method, self.method = self.method, None
            self.reference[index] = self.score(self.test[index])
            self.method = method
        return self.reference[index]

    def evaluate(self, method, indices):
        """One point: what the method reads of the dense bytes, and its perplexity against the dense model's."""
        references = [self.reference_of(i) for i in indices]
        for site in self.sites:
            site.reset()
        self.method = method
        found = [self.score(self.test[i], references[n][3])[:3] for n, i in enumerate(indices)]
        self.method = None
        self.last = found[-1]
        return self.point(found, references)

    def point(self, found, references):
        nll, top, kl = (torch.cat(parts) for parts in zip(*found))
        dense, dense_top = torch.cat([r[0] for r in references]), torch.cat([r[1] for r in references])
        change = nll - dense
        read = {site.name: (site.bits / site.tokens, site.helper_bits / site.tokens) for site in self.sites}
        kinds = {}
        for kind in KINDS:
            members = [site for site in self.sites if site.kind == kind]
            kinds[kind] = round(sum(sum(read[s.name]) for s in members) / sum(s.dense_bits for s in members), 4)
        helpers = sum(helper for _, helper in read.values()) / self.dense_bits
        weights = sum(bits for bits, _ in read.values()) / self.dense_bits
        return {"fraction": round(weights + helpers, 4), "helper_fraction": round(helpers, 4),
                "ratio": round(math.exp(change.mean()), 5),
                "log_ratio_se": round((change.std() / math.sqrt(len(change))).item(), 5),
                "kl": round(kl.mean().item(), 6), "top1": round((top == dense_top).double().mean().item(), 4),
                "perplexity": round(math.exp(nll.mean()), 4), "windows": len(references), "kinds": kinds}

    # ---- calibration ----

    def calibrate(self, cache=None):
        """R, a sample of inputs, Fisher information of outputs and sensitivity to noise, for each site."""
        names = ("R", "sample", "fisher", "fisher_rows", "noise")
        if cache and pathlib.Path(cache).is_file():
            stored = torch.load(cache)
            for site in self.sites:
                for name in names:
                    setattr(site, name, stored[site.name][name])
            return
        self._second_moments()
        self._fisher()
        self._noise()
        if cache:
            torch.save({site.name: {name: getattr(site, name) for name in names} for site in self.sites}, cache)

    def _second_moments(self):
        for site in self.sites:
            site.R, site.sample = torch.zeros(site.d, site.d), []

        def observe(site, x):
            site.R += x.T @ x
            site.sample.append(x[SAMPLE_STRIDE // 2::SAMPLE_STRIDE].clone())

        self.observer = observe
        for window in self.calibration:
            observe(self.head, self.body(window))
        self.observer = None
        for site in self.sites:
            site.R /= len(self.calibration) * CONTEXT
            site.sample = torch.cat(site.sample)

    def _fisher(self):
        """Mean squared gradient of the log-likelihood of tokens that the model draws, for an output of a site."""
        generator = torch.Generator().manual_seed(1)
        for site in self.sites:
            site.fisher_rows = torch.zeros(site.rows)
        embed = self.model.model.embed_tokens
        handle = embed.register_forward_hook(lambda m, a, o: o.requires_grad_())
        self.recording = True
        with torch.enable_grad():
            for window in self.calibration[:FISHER_WINDOWS]:
                for site in self.sites:
                    site.outputs = []
                hidden = self.body(window)
                leaf = hidden.detach().requires_grad_()
                for begin in range(0, CONTEXT, PIECE):
                    logits = self.logits(leaf[begin:begin + PIECE])
                    drawn = torch.multinomial(torch.softmax(logits.detach(), -1), 1, generator=generator)
                    torch.nn.functional.cross_entropy(logits, drawn[:, 0], reduction="sum").backward()
                    self.head.fisher_rows += (self.head.outputs.pop().grad ** 2).sum(0)
                hidden.backward(leaf.grad)
                for site in self.sites[:-1]:
                    site.fisher_rows += (site.outputs.pop().grad ** 2).sum(0)
        self.recording = False
        handle.remove()
        for site in self.sites:
            site.y = site.outputs = None
            site.fisher_rows /= FISHER_WINDOWS * CONTEXT
            site.fisher = site.fisher_rows.mean().item()

    def _noise(self):
        """The same from forward passes alone: 2 KL / (variance x outputs) with noise at one site. Its size goes by the
        median over tokens of the output's rms: one token with massive activations would set the mean."""
        window = self.calibration[0][:NOISE_TOKENS]
        generator = torch.Generator().manual_seed(2)

        def log_probabilities():
            return torch.log_softmax(self.logits(self.body(window)[2::4]), -1)

        clean, noisy = log_probabilities(), _Noise(generator)
        for site in self.sites:
            noisy.site, self.method = site, noisy
            damaged = log_probabilities()
            self.method = None
            kl = (clean.exp() * (clean - damaged)).sum(-1).mean().item()
            site.noise = 2 * max(kl, 1e-12) / (noisy.variance * site.rows)


class _Noise:
    def __init__(self, generator):
        self.generator, self.site, self.variance = generator, None, None

    def forward(self, site, x):
        y = site.dense(x)
        if site is self.site:
            sigma = NOISE * (y ** 2).mean(-1).sqrt().median().item()
            self.variance = sigma ** 2
            y = y + sigma * torch.randn(y.shape, generator=self.generator)
        return y
