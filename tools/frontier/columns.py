"""Methods that read, token by token, some columns of W or of W in a rotated basis: TEAL, rotations, graded columns.

A column is skipped, read coarsely (the upper 4 bits of its codes) or read in full; block scales are always read. The
grade minimises x_c² ‖error of that grade in column c‖² + λ_site bits, so each column has two thresholds on |x_c|.
"""
import torch

from .formats import Q8_BITS, SCALE_BITS, q8, q8_coarse

BISECTIONS = 40


class Columns:
    """basis: None, "site" (an own PCA for each site, its matrix read for each token) or "shared" (one rotation of the
    residual stream, free at run time; sites that do not read the stream keep their plain columns).
    coarse: whether the 4-bit grade exists. rule, how bits are shared out among sites: "fisher" and "noise" by the
    site's sensitivity, "rows" by each output's own, "uniform" the same bits everywhere. norms: whether thresholds know
    the columns' norms (TEAL's do not). centre: columns hold x - mean, and W mean is added."""

    per_window = False

    def __init__(self, name, fractions, basis=None, coarse=False, rule="uniform", norms=True, centre=False):
        self.name, self.settings, self.basis, self.coarse = name, fractions, basis, coarse
        self.rule, self.norms, self.centre = rule, norms, centre

    def prepare(self, subject):
        if self.basis == "shared" and subject.architecture.startswith("gemma3"):
            return "a rotation of the residual stream does not commute with the norms after each half of a layer"
        self.subject = subject
        rotation = self._shared_rotation() if self.basis == "shared" else None
        for site in subject.sites:
            site.turn = site.turned = site.coarse = site.errors = site.centre = None
            weight = site.weight
            if self.basis == "site":
                site.turn = q8(torch.linalg.eigh(site.R)[1].flip(1).T).T
                weight = q8(torch.linalg.solve(site.turn, site.weight.T).T.contiguous())
            elif rotation is not None and site.norm is not None:
                site.turn = rotation / site.norm[:, None]
                weight = q8((site.weight * site.norm) @ rotation)
            site.turned, sample = weight, site.sample if site.turn is None else site.sample @ site.turn
            if self.centre:
                site.centre = sample.mean(0)
                site.offset = weight @ site.centre
                sample = sample - site.centre
            importance = site.fisher_rows[:, None] / site.fisher if self.rule == "rows" else torch.ones(1, 1)
            skipped = (importance * weight ** 2).sum(0) if self.norms else torch.ones(site.d)
            if self.coarse:
                site.coarse = q8_coarse(weight)
                site.errors = skipped, (importance * (weight - site.coarse) ** 2).sum(0)
            else:
                site.errors = skipped, None
            site.energy = sample[::2] ** 2
        return None

    def _shared_rotation(self):
        total = 0
        for site in self.subject.sites:
            if site.norm is not None:
                total = total + site.R / site.norm[:, None] / site.norm[None, :]
        return torch.linalg.eigh(total)[1].flip(1)

    def _thresholds(self, site, price):
        """On x_c²: above the first a column is read, above the second it is read in full."""
        skipped, coarse = site.errors
        if coarse is None:
            return 8 * price / skipped, None
        apart = skipped > 2 * coarse  # else no x makes the coarse grade the best
        first = torch.where(apart, 4 * price / (skipped - coarse), 8 * price / skipped)
        return first, torch.where(apart, 4 * price / coarse, first)

    def _expected(self, site, price):
        """Fraction of the site's dense bits on the calibration sample."""
        first, second = self._thresholds(site, price)
        if second is None:
            bits = 8 * (site.energy > first).float().mean()
        else:
            bits = 4 * (site.energy > first).float().mean() + 4 * (site.energy > second).float().mean()
        return (bits.item() + SCALE_BITS) / Q8_BITS

    def _price(self, site, level):
        sensitivity = {"fisher": site.fisher, "rows": site.fisher, "noise": site.noise}[self.rule]
        return level * site.rows / sensitivity

    def set(self, fraction):
        """Prices at which the calibration sample reads this fraction (helpers come on top)."""
        if self.rule == "uniform":
            for site in self.subject.sites:
                price = bisect(lambda p, s=site: self._expected(s, p), fraction)
                site.limits = self._thresholds(site, price)
            return
        total = self.subject.dense_bits
        level = bisect(lambda v: sum(self._expected(s, self._price(s, v)) * s.dense_bits / total
                                      for s in self.subject.sites), fraction)
        for site in self.subject.sites:
            site.limits = self._thresholds(site, self._price(site, level))

    def forward(self, site, x):
        if site.turn is not None:
            x = x @ site.turn
        if self.centre:
            x = x - site.centre
        energy, (first, second) = x * x, site.limits
        read = energy > first
        bits = 8 * read.sum().item() if second is None else 4 * (read.sum() + (energy > second).sum()).item()
        if second is None:
            y = torch.nn.functional.linear(x * read, site.turned)
        else:
            full = energy > second
            y = torch.nn.functional.linear(x * full, site.turned)
            y += torch.nn.functional.linear(x * (read & ~full), site.coarse)
        if self.centre:
            y += site.offset
        site.read(site.rows * (bits + len(x) * site.d * SCALE_BITS), len(x) * self._helper_bits(site))
        return y

    def _helper_bits(self, site):
        bits = Q8_BITS * site.d ** 2 if self.basis == "site" else 0
        if self.norms:
            bits += 16 * site.d * (2 if self.coarse else 1)  # thresholds as halves
        if self.centre:
            bits += 16 * (site.d + site.rows)
        return bits


def bisect(fraction_at, target):
    low, high = -40.0, 20.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if fraction_at(10 ** middle) > target else (low, middle)
    return 10 ** high


class Static:
    """The Q8_0 model converted once more, to a smaller type: what any method must beat. A file that came from 4-bit
    weights (SmolLM2's is Q4_1) lies on their grid, which a type with the same blocks finds again."""

    per_window, name = False, "static"

    def __init__(self, types):
        self.types, self.settings = types, list(types)

    def prepare(self, subject):
        self.subject = subject

    def set(self, kind):
        self.bits, convert = self.types[kind]
        for site in self.subject.sites:
            site.turned = convert(site.weight)

    def forward(self, site, x):
        site.read(len(x) * self.bits * site.rows * site.d)
        return torch.nn.functional.linear(x, site.turned)
