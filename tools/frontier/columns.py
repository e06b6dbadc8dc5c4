"""Methods that read, token by token, some columns of W or of W in a rotated basis: TEAL, rotations, graded columns.

Of a column no bits, the upper few or all 8 of its codes are read; block scales always are. The grade minimises
x_c² ‖error of that grade in column c‖² + λ_site bits, so each column has a threshold on |x_c| for each grade.
"""
import torch

from .formats import Q8_BITS, SCALE_BITS, q8, q8_upper

BISECTIONS = 40


class Columns:
    """basis: None, "site" (an own PCA for each site, its matrix read for each token) or "head" (the same for the
    head alone, whose rows outweigh it), "shared" (one rotation of the residual stream, free at run time; sites that do
    not read the stream keep their plain columns).
    grades: the bits that may be read of a code. rule, how bits are shared out among sites: "fisher" and "noise" by the
    site's sensitivity, "rows" by each output's own, "uniform" the same bits everywhere. norms: whether thresholds know
    the columns' norms (TEAL's do not). centre: columns hold x - mean, and W mean is added."""

    per_window = False

    def __init__(self, name, fractions, basis=None, grades=(8,), rule="uniform", norms=True, centre=False):
        self.name, self.settings, self.basis, self.grades = name, fractions, basis, grades
        self.rule, self.norms, self.centre = rule, norms, centre

    def prepare(self, subject):
        if self.basis == "shared" and subject.architecture.startswith("gemma3"):
            return "a rotation of the residual stream does not commute with the norms after each half of a layer"
        self.subject = subject
        rotation = self._shared_rotation() if self.basis == "shared" else None
        for site in subject.sites:
            site.turn, weight = None, site.weight
            if self._own_basis(site):
                site.turn = q8(torch.linalg.eigh(site.R)[1].flip(1).T).T
                weight = q8(torch.linalg.solve(site.turn, site.weight.T).T.contiguous())
            elif rotation is not None and site.norm is not None:
                site.turn = rotation / site.norm[:, None]
                weight = q8((site.weight * site.norm) @ rotation)
            sample = site.sample if site.turn is None else site.sample @ site.turn
            if self.centre:
                site.centre = sample.mean(0)
                site.offset = weight @ site.centre
                sample = sample - site.centre
            importance = site.fisher_rows[:, None] / site.fisher if self.rule == "rows" else torch.ones(1, 1)
            site.graded = [weight if bits == 8 else q8_upper(weight, bits) for bits in self.grades]
            unread = (importance * weight ** 2).sum(0) if self.norms else torch.ones(site.d)
            site.errors = [unread] + [(importance * (weight - graded) ** 2).sum(0) for graded in site.graded]
            site.energy = sample[::2] ** 2
        return None

    def _own_basis(self, site):
        return self.basis == "site" or self.basis == "head" and site.kind == "head"

    def _shared_rotation(self):
        total = 0
        for site in self.subject.sites:
            if site.norm is not None:
                total = total + site.R / site.norm[:, None] / site.norm[None, :]
        return torch.linalg.eigh(total)[1].flip(1)

    def _thresholds(self, site, price):
        """On x_c², one for each grade: where it is worth more than the one before. Steps that are worth less a bit
        than those after them are taken together with them (antitonic regression of the gains, column by column)."""
        bits = (0, *self.grades)
        errors = site.errors
        rate = lambda first, last: (errors[first] - errors[last]) / (bits[last] - bits[first])
        found = []
        for step in range(len(self.grades)):
            worth = [torch.stack([rate(first, last) for last in range(step + 1, len(bits))]).amax(0)
                     for first in range(step + 1)]
            gain = torch.stack(worth).amin(0)
            found.append(torch.where(gain > 0, price / gain, torch.inf))
        return found

    def _bits(self, energy, limits):
        steps = zip(limits, (0, *self.grades), self.grades)
        return sum((grade - before) * (energy > limit).sum().item() for limit, before, grade in steps)

    def _expected(self, site, price):
        """Fraction of the site's dense bits on the calibration sample."""
        bits = self._bits(site.energy, self._thresholds(site, price)) / site.energy.numel()
        return (bits + SCALE_BITS) / Q8_BITS

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
        energy, y = x * x, 0
        above = [energy > limit for limit in site.limits]
        for n, graded in enumerate(site.graded):
            here = above[n] & ~above[n + 1] if n + 1 < len(above) else above[n]
            y = y + torch.nn.functional.linear(x * here, graded)
        if self.centre:
            y += site.offset
        site.read(site.rows * (self._bits(energy, site.limits) + len(x) * site.d * SCALE_BITS),
                  len(x) * self._helper_bits(site))
        return y

    def _helper_bits(self, site):
        bits = Q8_BITS * site.d ** 2 if self._own_basis(site) else 0
        if self.norms:
            bits += 16 * site.d * len(self.grades)  # thresholds as halves
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
            site.converted = convert(site.weight)

    def forward(self, site, x):
        site.read(len(x) * self.bits * site.rows * site.d)
        return torch.nn.functional.linear(x, site.converted)
