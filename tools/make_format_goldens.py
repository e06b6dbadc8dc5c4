#!/usr/bin/env python3
"""Makes the golden files of the room `formats` in tests/data/formats, by the gguf package (pip install gguf numpy).

dequantize.gguf  per type: blocks of random bytes with finite scales, and the f32 values that gguf decodes
quantize.gguf    rows of f32 values, and the bytes that gguf encodes, per type that it can encode

Seeds for the fuzzer go to tests/fuzz/corpus/gguf.
"""

import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

TESTS = pathlib.Path(__file__).resolve().parent.parent / "tests"
OUT = TESTS / "data/formats"
CORPUS = TESTS / "fuzz/corpus/gguf"
BLOCKS = 16

# Offsets of the f16 fields in a block.
SCALES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0],
}
# Zero, the smallest and largest subnormal, the smallest and largest normal, one; of both signs.
EDGES = [s | h for h in (0x0000, 0x0001, 0x03FF, 0x0400, 0x7BFF, 0x3C00) for s in (0, 0x8000)]


def writer(path):
    return gguf.GGUFWriter(path, arch="golden")


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def finite_f16(rng, n):
    h = rng.integers(0, 1 << 16, n, dtype=np.uint16)
    return np.where(h & 0x7C00 == 0x7C00, h & 0xBFFF, h).astype(np.uint16)


def make_dequantize():
    rng = np.random.default_rng(1)
    w = writer(OUT / "dequantize.gguf")
    for dtype, scales in SCALES.items():
        _, size = gguf.GGML_QUANT_SIZES[dtype]
        blocks = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        for field, offset in enumerate(scales):
            h = finite_f16(rng, BLOCKS)
            h[: len(EDGES)] = np.roll(EDGES, 5 * field)
            blocks[:, offset : offset + 2] = h.view(np.uint8).reshape(-1, 2)
        w.add_tensor(dtype.name, blocks, raw_dtype=dtype)
        w.add_tensor(dtype.name + ".f32", gguf.dequantize(blocks, dtype).astype(np.float32))
    for dtype in (T.F16, T.BF16):
        bits = finite_f16(rng, 256)
        bits[: len(EDGES)] = EDGES
        if dtype == T.F16:
            bits[-2:] = [0x7C00, 0xFC00]  # infinities are kept
        values = gguf.dequantize(bits.view(np.uint8).reshape(1, -1), dtype).reshape(-1)
        w.add_tensor(dtype.name, bits.view(np.uint8).reshape(1, -1), raw_dtype=dtype)
        w.add_tensor(dtype.name + ".f32", values.astype(np.float32))
    finish(w)


def make_quantize():
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((32, 64)).astype(np.float32)
    rows *= np.exp2(np.arange(-24, 8)).astype(np.float32)[:, None]  # from subnormal scales up
    half = rng.integers(-7, 8, (4, 64)).astype(np.float32) / 2  # ties
    odd = np.zeros((4, 64), np.float32)
    odd[1, 3] = -5.0
    odd[2, :] = 2.5
    odd[3, 10], odd[3, 20] = 1.5, -1.5  # which of the two extremes gives the scale
    x = np.concatenate([rows, half, odd])
    w = writer(OUT / "quantize.gguf")
    w.add_tensor("values", x)
    for dtype in (T.Q4_0, T.Q4_1, T.Q5_0, T.Q8_0, T.F16, T.BF16):
        w.add_tensor(dtype.name, gguf.quantize(x, dtype).view(np.uint8).reshape(len(x), -1), raw_dtype=dtype)
    finish(w)


def make_corpus():
    w = writer(CORPUS / "values.gguf")
    w.add_uint8("u8", 1)
    w.add_int8("i8", -1)
    w.add_uint16("u16", 2)
    w.add_int16("i16", -2)
    w.add_uint32("u32", 3)
    w.add_int32("i32", -3)
    w.add_uint64("u64", 4)
    w.add_int64("i64", -4)
    w.add_float32("f32", 0.5)
    w.add_float64("f64", 0.25)
    w.add_bool("bool", True)
    w.add_array("strings", ["a", "", "long enough to be on the heap"])
    w.add_array("integers", [1, -2, 3])
    w.add_array("floats", [0.5, 1.5])
    w.add_array("bools", [True, False])
    finish(w)

    rng = np.random.default_rng(3)
    w = writer(CORPUS / "tensors.gguf")
    for dtype in (T.Q4_0, T.Q5_1, T.Q8_0, T.Q3_K, T.Q4_K, T.IQ4_XS):
        _, size = gguf.GGML_QUANT_SIZES[dtype]
        w.add_tensor(dtype.name, rng.integers(0, 256, (1, size), dtype=np.uint8), raw_dtype=dtype)
    w.add_tensor("i32", np.arange(4, dtype=np.int32))
    w.add_tensor("f16", np.ones((2, 3), np.float16))
    finish(w)

    w = writer(CORPUS / "aligned.gguf")
    w.add_custom_alignment(64)
    w.add_uint16("split.count", 1)
    w.add_tensor("a", np.ones((2, 3, 4), np.float32))
    w.add_tensor("b", np.ones(3, np.float32))
    finish(w)

    for name in ("values", "tensors"):
        data = bytearray((CORPUS / f"{name}.gguf").read_bytes())
        data[4] = 2  # the version
        (CORPUS / f"{name}_v2.gguf").write_bytes(data)


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    CORPUS.mkdir(parents=True, exist_ok=True)
    make_corpus()
    make_dequantize()
    make_quantize()
