"""Random kernels and knobs: whatever a script is asked for, `tiles` equals `kernels` on the CPU."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.kernels.payloads import assert_same, attention, matmul, norm

SIZES = st.sampled_from([1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 31, 32, 33, 47, 64, 65])
TOLERANCE = {"f32": 1e-5, "bf16": 2e-2, "f16": 5e-3}
FEW = settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@FEW
@given(
    sizes=st.tuples(SIZES, SIZES, SIZES),
    dtype=st.sampled_from(list(TOLERANCE)),
    batch=st.sampled_from([0, 1, 3]),
    flags=st.tuples(*[st.booleans()] * 4),
    blocks=st.tuples(*[st.sampled_from([8, 16, 32])] * 3),
)
def test_matmul(sizes, dtype, batch, flags, blocks):
    names = ("transposed", "prologue", "epilogue", "gates")
    knobs = "matmul:block_m={},block_n={},block_k={}".format(*blocks)
    options = dict(zip(names, flags, strict=True))
    assert_same(matmul(*sizes, dtype, batch=batch, **options), (knobs,), TOLERANCE[dtype])


@FEW
@given(
    heads=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    lengths=st.tuples(SIZES, SIZES),
    dims=st.tuples(st.sampled_from([1, 4, 20]), st.sampled_from([1, 8])),
    causal=st.booleans(),
    window=st.sampled_from([0, 0, 1, 9]),
    layouts=st.tuples(*[st.permutations("bhsd").map("".join)] * 4),
    mask=st.sampled_from(["", "i1", "f32"]),
    full=st.tuples(*[st.booleans()] * 4),
    blocks=st.tuples(st.sampled_from([8, 16, 64]), st.sampled_from([4, 8, 32])),
    split=st.sampled_from(["true", "false"]),
)
def test_attention(heads, lengths, dims, causal, window, layouts, mask, full, blocks, split):
    kv_heads, group = heads
    shape = (2, kv_heads * group, *lengths)
    mask_type = "x".join(str(n) if f else "1" for n, f in zip(shape, full, strict=True))
    text = attention(
        batch=2, heads=(kv_heads * group, kv_heads), lengths=lengths, dims=dims, causal=causal, window=window,
        layouts=layouts, mask=f"tensor<{mask_type}x{mask}>" if mask else "",
    )  # fmt: skip
    assert_same(text, (f"attention:block_q={blocks[0]},block_kv={blocks[1]},split={split}",))


@FEW
@given(rows=SIZES, length=SIZES, lead=st.sampled_from([1, 2, 5]), block=st.sampled_from([1, 2, 4]))
def test_norm(rows, length, lead, block):
    assert_same(norm(rows, length, lead=lead), (f"reduction_0:rows={block}",) if length > 1 else ())
