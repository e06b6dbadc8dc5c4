"""The output head alone, on the dense model's hidden states: arg max certified by bounds, or rescored without proof."""
import math

import torch

from .columns import Columns
from .formats import BLOCK, Q8_BITS, SCALE_BITS, q8_scales, q8_upper
from .subject import PIECE

BEST = (16, 64, 256)


def certified(subject, positions):
    """Bytes, as a share of the dense head's, that an arg max costs whose exactness is proven: approximate logits with a
    bound for each row, then every row exactly that could still be the largest."""
    hidden = torch.cat([subject.body(w)[:-1] for w in subject.test])[:positions]
    return [_coarse_plane(subject.head, hidden, share) for share in (0, 0.1, 0.25)] + \
        [_projected(subject.head, hidden, k) for k in (192, 360)]


def _survivors(approximate, bound):
    return (approximate + bound >= (approximate - bound).max(-1, keepdim=True)[0]).sum(-1).double()


def _coarse_plane(head, hidden, skipped_share):
    """The columns whose |x| is smallest skipped, the others at 4 bits. A row's bound is the smaller of: the sum over
    blocks of scale x (8 x sum of |x| over its coarse columns + 127 x over its skipped ones); and Cauchy-Schwarz with
    the row's norms, stored as halves. Survivors need the codes' lower halves, and both halves of skipped columns."""
    coarse, scales = q8_upper(head.weight), q8_scales(head.weight)
    error_norm, norm, survivors = (head.weight - coarse).norm(dim=1), head.weight.norm(dim=1), []
    for x in hidden.split(PIECE):
        limit = x.abs().quantile(skipped_share, dim=1, keepdim=True) if skipped_share else -1
        skip = x.abs() <= limit
        near, far = x * ~skip, x * skip
        blocks = 8 * near.abs().view(len(x), -1, BLOCK).sum(-1) + 127 * far.abs().view(len(x), -1, BLOCK).sum(-1)
        bound = torch.minimum(blocks @ scales.T, near.norm(dim=1, keepdim=True) * error_norm
                              + far.norm(dim=1, keepdim=True) * norm)
        survivors.append(_survivors(near @ coarse.T, bound))
    share = torch.cat(survivors).mean().item() / head.rows
    base = 4 * (1 - skipped_share) + SCALE_BITS + 16 * (2 if skipped_share else 1) / head.d
    return {"method": "coarse plane", "skipped": skipped_share, "surviving_rows": round(share, 4),
            "fraction": round((base + share * (8 - 4 * (1 - skipped_share))) / Q8_BITS, 4)}


def _projected(head, hidden, k):
    """The paper's: logits in the subspace of the leading k directions, bounds |(I - VV')w| |r|."""
    V = torch.linalg.eigh(head.R)[1].flip(1)[:, :k]
    M = head.weight @ V
    beside, survivors = (head.weight - M @ V.T).norm(dim=1), []
    for x in hidden.split(PIECE):
        g = x @ V
        r = (x - g @ V.T).norm(dim=1, keepdim=True)
        survivors.append(_survivors(g @ M.T, r * beside))
    share = torch.cat(survivors).mean().item() / head.rows
    return {"method": "subspace", "k": k, "surviving_rows": round(share, 4),
            "fraction": round(k / head.d + k / head.rows + 16 / head.d / Q8_BITS + share, 4)}


def rescored(subject, positions, fractions):
    """Graded columns at several fractions of the head, then the best N logits exactly: how often the arg max is not
    among them, and the perplexity's ratio when they alone are exact. Not certified."""
    head = subject.head
    method = Columns("head", fractions, grades=(4, 8))
    method.prepare(_HeadOnly(subject))
    limits = []
    for fraction in fractions:
        method.set(fraction)
        limits.append(head.limits)
    count, dense_nll = 0, 0.0
    tally = {(f, n): [0, 0.0] for f in fractions for n in (0, *BEST)}
    read = dict.fromkeys(fractions, 0)
    for window in subject.held_out:
        hidden, targets = subject.body(window)[:-1], window[1:]
        for x, target in zip(hidden.split(PIECE), targets.split(PIECE)):
            x, target = x[:positions - count], target[:positions - count]
            exact = head.dense(x)
            best = exact.argmax(-1, keepdim=True)
            dense_nll += _nll(subject, exact, target)
            for fraction, head.limits in zip(fractions, limits):
                head.reset()
                approximate = method.forward(head, x)
                read[fraction] += head.bits + head.helper_bits
                top = approximate.topk(max(BEST), -1)[1]
                tally[fraction, 0][1] += _nll(subject, approximate, target)
                tally[fraction, 0][0] += (top[:, :1] != best).sum().item()
                for n in BEST:
                    tally[fraction, n][0] += (top[:, :n] != best).all(-1).sum().item()
                    approximate.scatter_(1, top[:, :n], exact.gather(1, top[:, :n]))
                    tally[fraction, n][1] += _nll(subject, approximate, target)
            count += len(x)
            if count >= positions:
                break
        if count >= positions:
            break
    return [{"positions": count, "best": n, "misses": misses,
             "fraction": round(read[f] / count / head.dense_bits + n / head.rows, 4),
             "ratio": round(math.exp((nll - dense_nll) / count), 5)} for (f, n), (misses, nll) in tally.items()]


def _nll(subject, logits, target):
    return torch.nn.functional.cross_entropy(subject.cap(logits), target, reduction="sum").item()


class _HeadOnly:
    def __init__(self, subject):
        self.sites, self.dense_bits, self.architecture = [subject.head], subject.head.dense_bits, subject.architecture
