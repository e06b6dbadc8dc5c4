"""Methods with a subspace of each site: gated inference (GSI) and its variants, and R-Sparse. Every matrix that they
read is held in Q8_0, and so quantized here."""
import torch

from .columns import bisect
from .formats import Q8_BITS, SCALE_BITS, q8


def _multiple_of_32(k):
    return max(32, round(k / 32) * 32)


class Gated:
    """GSI: y = M g where the part of x outside the subspace is below epsilon, else W x. share: k / d.
    paper: the basis is calibrated on the very tokens that are evaluated, as the paper does, window by window."""

    def __init__(self, name, epsilons, share, paper=False):
        self.name, self.settings, self.share, self.per_window = name, epsilons, share, paper

    def prepare(self, subject):
        self.subject = subject
        if not self.per_window:
            for site in subject.sites:
                k = _multiple_of_32(self.share * site.d)
                self._store(site, torch.linalg.eigh(site.R)[1].flip(1)[:, :k])

    def prepare_window(self, window):
        seen = {}
        self.subject.observer = lambda site, x: seen.__setitem__(site.name, x)
        seen["head"] = self.subject.body(window)
        self.subject.observer = None
        for site in self.subject.sites:
            k = min(_multiple_of_32(self.share * site.d), len(window))
            self._store(site, torch.linalg.svd(seen[site.name], full_matrices=False)[2][:k].T)

    def _store(self, site, basis):
        site.V = q8(basis.T.contiguous()).T
        site.M = q8(site.weight @ basis)

    def set(self, epsilon):
        self.epsilon = epsilon

    def forward(self, site, x):
        g = x @ site.V
        r = x - g @ site.V.T
        slow = r.norm(dim=-1) >= self.epsilon * x.norm(dim=-1)
        y = x.new_empty(len(x), site.rows)
        y[~slow] = g[~slow] @ site.M.T
        y[slow] = site.dense(x[slow])
        count, k = slow.sum().item(), site.V.shape[1]
        site.read((count * site.rows * site.d + (len(x) - count) * site.rows * k) * Q8_BITS,
                  len(x) * site.d * k * Q8_BITS)
        return y


class Online(Gated):
    """GSI whose basis follows the text: at each position divisible by 64 the strongest directions of the residuals that
    took the slow path since join V, and their images (from y - M g, which costs one more reading of M) join M, where
    the least used directions leave. The state lives on from window to window. New columns are not quantized here."""

    EVERY, AT_MOST, DECAY = 64, 24, 0.9

    def prepare(self, subject):
        super().prepare(subject)
        for site in subject.sites:
            site.first_V, site.first_M = site.V.contiguous(), site.M
            site.first_energy = ((site.sample @ site.V) ** 2).mean(0) * self.EVERY / (1 - self.DECAY)

    def set(self, epsilon):
        self.epsilon = epsilon
        for site in self.subject.sites:
            site.V, site.M, site.used = site.first_V.clone(), site.first_M.clone(), site.first_energy.clone()
            site.pending = []
            site.seen = 0

    def forward(self, site, x):
        y = []
        for begin in range(0, len(x), self.EVERY):  # the head comes in pieces of 64, the rest in windows of 512
            part = x[begin:begin + self.EVERY]
            g = part @ site.V
            r = part - g @ site.V.T
            slow = r.norm(dim=-1) >= self.epsilon * part.norm(dim=-1)
            out = g @ site.M.T
            image = site.dense(part[slow])
            difference = image - out[slow]
            out[slow] = image
            y.append(out)
            count, k = slow.sum().item(), site.V.shape[1]
            site.read((count * site.rows * site.d + len(part) * site.rows * k) * Q8_BITS,
                      len(part) * site.d * k * Q8_BITS)
            site.used = self.DECAY * site.used + (g ** 2).sum(0)
            if count:
                self._adapt(site, r[slow], difference)
        return torch.cat(y)

    def _adapt(self, site, r, difference):
        left, strength, right = torch.linalg.svd(r, full_matrices=False)
        energy = strength ** 2 / (1 - self.DECAY)
        order = site.used.argsort()
        n = 0
        while n < min(self.AT_MOST, len(strength)) and energy[n] > site.used[order[n]] and strength[n] > 0:
            n += 1
        if n:
            out = order[:n]
            site.V[:, out] = right[:n].T
            site.M[:, out] = ((left[:, :n] / strength[:n]).T @ difference).T
            site.used[out] = energy[:n]


class OutputAware:
    """Oblique projection: y = U (E x) with E = U'W, the k directions of the output that carry most energy on
    calibration text, and a gate on the output's error, estimated (not bounded) by m random projections of W x - y.
    Fast where the estimated squared error x the site's Fisher information / 2 is worth less than the bits saved; the
    price is set so that a given share of what could be saved is saved on calibration text."""

    per_window, PROBES = False, 16

    def __init__(self, name, saved_shares, share):
        self.name, self.settings, self.share = name, saved_shares, share

    def prepare(self, subject):
        self.subject = subject
        generator = torch.Generator().manual_seed(3)
        for site in subject.sites:
            k = _multiple_of_32(self.share * site.d)
            values, vectors = torch.linalg.eigh(site.R)
            root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
            gram = site.weight.T @ site.weight
            energy, right = torch.linalg.eigh(root @ gram @ root)
            k = min(k, site.rows)
            right, sigma = right.flip(1)[:, :k], energy.flip(0)[:k].clamp(min=1e-12 * energy[-1]).sqrt()
            U = site.weight @ (root @ right / sigma)
            site.encoder = q8((U.T @ site.weight).contiguous())
            site.decoder = q8(U)
            probes = torch.randn(self.PROBES, site.rows, generator=generator) / self.PROBES ** 0.5
            site.probes = q8(probes @ site.weight - (probes @ site.decoder) @ site.encoder)
            site.saved = Q8_BITS * site.rows * (site.d - k)
            site.estimates = self._estimate(site, site.sample)

    def _estimate(self, site, x):
        return ((x @ site.probes.T) ** 2).sum(-1) * site.fisher / 2

    def set(self, share):
        total = sum(site.saved for site in self.subject.sites)

        def kept(price):
            return 1 - sum((s.estimates < price * s.saved).float().mean().item() * s.saved
                           for s in self.subject.sites) / total

        self.price = bisect(kept, 1 - share)

    def forward(self, site, x):
        fast = self._estimate(site, x) < self.price * site.saved
        y = x.new_empty(len(x), site.rows)
        y[fast] = (x[fast] @ site.encoder.T) @ site.decoder.T
        y[~fast] = site.dense(x[~fast])
        count, k = fast.sum().item(), len(site.encoder)
        site.read(Q8_BITS * (count * site.rows * k + (len(x) - count) * site.rows * site.d),
                  Q8_BITS * (count * k * site.d + len(x) * self.PROBES * site.d))
        return y


class RSparse:
    """arXiv 2504.19449: exact columns for the inputs of large magnitude, a truncated SVD of W for the rest. Each site
    has the same budget; how it is split between the two is chosen by the output error on calibration tokens."""

    per_window, SHARES = False, (0, 0.1, 0.2, 0.35, 0.5, 0.75)

    def __init__(self, name, fractions):
        self.name, self.settings = name, fractions

    def prepare(self, subject):
        self.subject = subject
        for site in subject.sites:
            site.gram = site.weight.T @ site.weight
            site.right = torch.linalg.eigh(site.gram)[1].flip(1)

    def set(self, fraction):
        for site in self.subject.sites:
            x, best = site.sample[::4], None
            for share in self.SHARES:
                cost = (site.d + site.rows) / (site.rows * site.d)
                rank = 32 * round(share * fraction / cost / 32)
                keep = (Q8_BITS * (fraction - rank * cost) - SCALE_BITS) / 8
                if (share and not rank) or not 0 < keep < 1:
                    continue
                limit = x.abs().flatten().quantile(1 - keep).item()
                rest = x * (x.abs() <= limit)
                z = rest - rest @ site.right[:, :rank] @ site.right[:, :rank].T
                error = ((z @ site.gram) * z).sum().item()
                if best is None or error < best[0]:
                    best = error, rank, limit
            _, site.rank, site.limit = best
            basis = site.right[:, :site.rank]
            if site.rank:
                site.encoder, site.decoder = q8(basis.T.contiguous()), q8(site.weight @ basis)

    def forward(self, site, x):
        large = x.abs() > site.limit
        y = site.dense(x * large)
        if site.rank:
            y += ((x * ~large) @ site.encoder.T) @ site.decoder.T
        site.read(site.rows * (8 * large.sum().item() + len(x) * (SCALE_BITS * site.d + Q8_BITS * site.rank)),
                  len(x) * Q8_BITS * site.rank * site.d)
        return y
