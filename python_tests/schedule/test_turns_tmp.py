import pytest
from support.kernels.check import check_schedule
from support.kernels.payloads import attention

ONE = (1, 1)
CASES = [
    (dict(lengths=(129, 330), dims=(64, 64), heads=(2, 1), causal=True), "block_q=128,block_kv=64,turns=2"),
    (dict(lengths=(70, 330), dims=(64, 64), heads=(2, 1), causal=True), "block_kv=64,split=False"),
    (dict(lengths=(67, 259), dims=(128, 128), heads=ONE), "block_kv=64,block_q=128,turns=2"),
    (dict(lengths=(131, 200), dims=(128, 128), heads=ONE, causal=True), "block_q=128,block_kv=32,stages=3,turns=2"),
]


@pytest.mark.parametrize(("options", "knobs"), CASES)
def test_it(options, knobs):
    check_schedule(attention(**{"dtype": "bf16"} | options), (f"attention:mma=wgmma,{knobs},behind=1",), 1e-2)
