"""Figures by which two sets of logits are compared. Arrays are float32, tokens x vocabulary."""
import numpy as np


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return logits


def compare(reference, candidate):
    """Largest |difference| of logits, mean and largest KL(reference || candidate) in nats, share of equal arg max."""
    if reference.shape != candidate.shape:
        raise ValueError(f"logits of shape {candidate.shape}, expected {reference.shape}")
    kl, same, largest = [], 0, 0.0
    for begin in range(0, len(reference), 32):  # a block of rows at a time: the vocabulary may be 262144
        rows = slice(begin, begin + 32)
        p, q = log_softmax(reference[rows]), log_softmax(candidate[rows])
        kl.extend((np.exp(p) * (p - q)).sum(axis=-1))
        same += int((reference[rows].argmax(axis=-1) == candidate[rows].argmax(axis=-1)).sum())
        largest = max(largest, float(np.abs(reference[rows] - candidate[rows]).max()))
    return {"max_abs_difference": largest, "mean_kl": float(np.mean(kl)), "max_kl": float(np.max(kl)),
            "top1_agreement": same / len(reference)}


def negative_log_likelihood(logits, targets):
    """Sum over rows of -log p(target), the exponentials in float32 and their sum in float64 (fast, 7 digits)."""
    total = 0.0
    for begin in range(0, len(targets), 64):
        rows = logits[begin:begin + 64]
        top = rows.max(axis=-1, keepdims=True)
        normaliser = np.log(np.exp(rows - top).sum(axis=-1, dtype=np.float64)) + top[:, 0]
        total += float((normaliser - rows[np.arange(len(rows)), targets[begin:begin + 64]]).sum())
    return total
