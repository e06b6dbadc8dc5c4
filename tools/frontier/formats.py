"""Q8_0 and what is read of it, and static types for comparison: float tensors in, the same tensors as stored out."""
import gguf
import numpy as np
import torch

BLOCK = 32
SCALE_BITS = 16 / BLOCK  # of a weight, in Q8_0
Q8_BITS = 8 + SCALE_BITS


def _blocks(w):
    rows, columns = w.shape
    padded = torch.nn.functional.pad(w, (0, -columns % BLOCK))
    return padded.view(rows, -1, BLOCK)


def _codes(w):
    blocks = _blocks(w)
    scale = (blocks.abs().amax(-1, keepdim=True) / 127).half().float()
    scale[scale == 0] = 1
    return torch.round(blocks / scale).clamp(-127, 127), scale


def q8(w):
    """w as Q8_0 holds it, blocks of 32 along a row."""
    codes, scale = _codes(w)
    return (codes * scale).flatten(1)[:, :w.shape[1]].contiguous()


def q8_upper(w, bits=4):
    """w with only the upper bits of each Q8_0 code known: the middle of the codes that share them."""
    codes, scale = _codes(w)
    step = 2 ** (8 - bits)
    middle = torch.floor((codes + 128) / step) * step + (step - 1) / 2 - 128
    return (middle * scale).flatten(1)[:, :w.shape[1]].contiguous()


def q8_scales(w):
    """rows x blocks."""
    return _codes(w)[1][..., 0]


def _with_gguf(kind):
    def convert(w):
        stored = gguf.quants.quantize(w.numpy(), kind)
        return torch.from_numpy(gguf.quants.dequantize(stored, kind).astype(np.float32))
    return convert


def _uniform_sub_blocks(w, width, steps):
    """Codes of -steps … steps - 1, a scale for width weights, itself 8 bits of a half for 256 (as in Q6_K)."""
    flat = torch.nn.functional.pad(w.flatten(), (0, -w.numel() % 256)).view(-1, 256 // width, width)
    extreme = flat.gather(-1, flat.abs().argmax(-1, keepdim=True))
    scale = -extreme / steps  # the largest falls on the code -steps, which has no positive counterpart
    top = (scale.abs().amax(1, keepdim=True) / 127).half().float()
    top[top == 0] = 1
    scale = torch.round(scale / top) * top
    safe = torch.where(scale == 0, torch.ones_like(scale), scale)
    codes = torch.round(flat / safe).clamp(-steps, steps - 1)
    return (codes * scale).flatten()[:w.numel()].view(w.shape)


STATIC_TYPES = {  # name: (bits of a weight, conversion)
    "Q6_K-like": (6 + 8 / 16 + 16 / 256, lambda w: _uniform_sub_blocks(w, 16, 32)),
    "Q5_1": (6.0, _with_gguf(gguf.GGMLQuantizationType.Q5_1)),
    "Q5_0": (5.5, _with_gguf(gguf.GGMLQuantizationType.Q5_0)),
    "Q4_1": (5.0, _with_gguf(gguf.GGMLQuantizationType.Q4_1)),
    "Q4_0": (4.5, _with_gguf(gguf.GGMLQuantizationType.Q4_0)),
    "Q3_K-like": (3 + 8 / 16 + 16 / 256, lambda w: _uniform_sub_blocks(w, 16, 4)),
}
