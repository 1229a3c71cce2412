"""The kernels whose mutants are tried: every shipped script, at small and odd shapes."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from mlirc import mlir
from mlirc.device import Report
from mlirc.device.direct import run_function
from mlirc.device.reference import Reference, References
from mlirc.device.tensor_maps import TensorMap
from mlirc.driver.kernel_build import to_gpu
from mlirc.host.jit import tensor_spec
from mlirc.mlir import ir
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels import order as order_kernels
from support.kernels import warp as warp_kernels
from support.kernels.check import TARGET, function_name
from support.kernels.convolutions import Convolution
from support.kernels.hopper import HANDS
from support.kernels.payloads import attention, generic, inputs_of, kernel, matmul, norm, recurrence, scan, sort
from support.kernels.product import BARRIERS, STAGES, K, M, N, product
from support.kernels.stencils import Depthwise
from support.mutants.kernels import Case


def add_transposed(m: int, n: int) -> str:
    """x [m, n] plus the transpose of y [n, m]."""
    x, y = f"tensor<{m}x{n}xf32>", f"tensor<{n}x{m}xf32>"
    body = f"  %e = tensor.empty() : {x}\n" + generic(
        "r", "a, b", [("%x", x, "a, b"), ("%z", y, "b, a")], ("%e", x, "a, b"), "%y = arith.addf %x0, %x1 : f32"
    )
    return kernel("elementwise_0", "elementwise", {"x": x, "z": y}, x, body)


def column_sums(m: int, n: int) -> str:
    """The sums of x [m, n] over m, for the generic script."""
    x, y = f"tensor<{m}x{n}xf32>", f"tensor<{n}xf32>"
    lines = [
        "  %zero = arith.constant 0.0 : f32", f"  %e = tensor.empty() : {y}",
        f"  %f = linalg.fill ins(%zero : f32) outs(%e : {y}) -> {y}",
        generic("r", "b, a", [("%x", x, "a, b")], ("%f", y, "b"), "%y = arith.addf %o, %x0 : f32"),
    ]  # fmt: skip
    return kernel("generic_0", "generic", {"x": x}, y, "\n".join(lines))


ORDER = {  # not shipped yet: kernels whose blocks order each other
    "split-K, fences": (order_kernels.split_k(), (11, 37), np.float32, order_kernels.split_k_right),
    "split-K, acq_rel": (order_kernels.split_k(fenced=False), (11, 37), np.float32, order_kernels.split_k_right),
    "grid barrier": (order_kernels.grid_barrier(), (150,), np.int32, order_kernels.grid_barrier_right),
    "flags": (order_kernels.producer_consumer(), (2, 5, 37), np.int32, order_kernels.producer_consumer_right),
    **{
        f"lock, {x}": (order_kernels.locked_sum(x), (5, 37), np.int32, order_kernels.locked_sum_right)
        for x in order_kernels.LOCKS
    },
}
ORDER["half warps"] = (  # lanes that work together in parts of a warp, and warps in parts of a block
    warp_kernels.half_warps(), (warp_kernels.THREADS * warp_kernels.BLOCKS,), np.int32, warp_kernels.half_warps_right,
)  # fmt: skip
HOPPER = "product, mbarriers and tensor copies"  # not shipped yet: producer and consumer warpgroups

KERNELS: dict[str, tuple[str, str]] = {
    "elementwise": (add_transposed(13, 37), "elementwise:warps=2"),
    "elementwise, across rows": (add_transposed(36, 40), "elementwise:warps=2"),
    "norm, cluster of 16": (norm(2, 600), "reduction:blocks=16,warps=2"),
    "norm, 4 warps": (norm(3, 391), "reduction:warps=4"),
    "norm, 1 warp": (norm(5, 67, "bf16"), "reduction:warps=1"),
    "scan of rows": (scan((3, 1001), 1), "scan:warps=2,step=256"),
    "scan of rows, reverse": (scan((3, 391), 1, kind="reverse"), "scan:warps=2,step=256"),
    "scan of rows, chained": (scan((2, 1061), 1), "scan:chain=true,warps=1,vector=1,step=32"),
    "scan of rows, chained, flags": (scan((2, 80), 1, "f64"), "scan:chain=true,warps=1,vector=1,step=32"),
    "sort, network of a warp": (sort(3, 37, 11), "sort:warps=1"),
    "sort, network of a block": (sort(2, 150, 150, "bf16"), "sort:elements=2"),
    "scan of columns": (scan((2, 23, 70), 1), "scan:warps=2,step=16"),
    "matmul, mma, 3 stages": (
        matmul(33, 40, 102, "bf16"), "matmul:block_m=32,block_n=32,block_k=32,warps_m=2,warps_n=1,stages=3",
    ),
    "matmul, mma, 1 stage": (matmul(33, 40, 50, "f16"), "matmul:block_m=32,block_n=32,block_k=16,stages=1"),
    "matmul, mma, odd": (matmul(17, 19, 23, "bf16"), "matmul:block_m=16,block_n=16,block_k=16,stages=1"),
    "matmul, mma, gates": (
        matmul(31, 33, 64, "bf16", gates=True), "matmul:block_m=32,block_n=32,block_k=32,stages=2",
    ),
    "matmul, wgmma": (
        matmul(67, 20, 264, "bf16"), "matmul:mma=wgmma,block_m=64,block_n=16,warps_m=4,warps_n=1,copy=cp_async"
    ),
    "matmul, ring": (matmul(67, 24, 200, "bf16"), "matmul:mma=wgmma,block_m=64,block_n=16,blocks=3,stages=2"),
    "matmul, ring of a cluster": (
        matmul(128, 24, 136, "bf16"), "matmul:mma=wgmma,block_m=64,block_n=16,cluster_size=2,blocks=2,stages=2"
    ),
    "matmul, ring, few rows": (matmul(3, 40, 136, "bf16"), "matmul:blocks=1,stages=2"),
    "matmul, ring, TF32": (
        matmul(9, 60, 136, epilogue=False),
        "matmul:mma=wgmma_tf32x3,block_m=16,block_n=64,block_k=32,warps_m=1,warps_n=4,stages=2",
    ),
    "matmul, ring, split K": (matmul(3, 40, 328, "bf16"), "matmul:parts=2,stages=2"),
    "matmul, streamed": (matmul(5, 7, 49), "matmul:stream=1,block_m=4,block_n=4,block_k=16,blocks=3"),
    "matmul, ring, swapped": (matmul(4, 70, 136, "bf16"), "matmul:swap_operands=true,stages=2"),
    "convolution, ring": (
        str(Convolution(2, (6, 5), 32, 24, (3, 2), stride=1, pad=1, dtype="f32").payload()),
        "matmul:mma=wgmma_tf32x3,block_m=16,block_n=64,block_k=32,warps_m=1,warps_n=4,stages=2,copy=tma",
    ),
    "convolution, ring of a cluster": (
        str(Convolution(6, (7, 9), 40, 24, (3, 3), stride=2, pad=1).payload()),
        "matmul:mma=wgmma,block_m=64,block_n=16,cluster_size=2,stages=2,copy=tma",
    ),
    "convolution, ring, 8 bits": (
        str(Convolution(1, (9, 7), 48, 16, (3, 2), pad=1, dtype="f8E4M3FN", channels=64).payload()),
        "matmul:mma=wgmma8,block_m=64,block_n=16,stages=2,copy=tma",
    ),
    "matmul, fma": (matmul(33, 35, 70), "matmul:block_m=32,block_n=32,block_k=16,warps_m=2,warps_n=2,stages=3"),
    "matmul, fma, batch": (matmul(5, 17, 33, batch=2), "matmul:block_m=4,block_n=16,block_k=16,stages=2"),
    "attention, bf16": (
        attention(lengths=(40, 70), dims=(16, 16), dtype="bf16", causal=True),
        "attention:block_q=32,block_kv=32,warps=2,stages=2",
    ),
    "attention, f32": (
        attention(lengths=(17, 33), dims=(16, 16), window=9, causal=True), "attention:block_q=16,block_kv=16",
    ),
    "attention, ring, ahead": (
        attention(lengths=(35, 90), dims=(16, 16), dtype="bf16"),
        "attention:mma=wgmma,block_q=64,block_kv=32,stages=3,rotate=1",
    ),
    "attention, log-sum-exp": (
        attention(lengths=(19, 37), dims=(16, 16), dtype="bf16", causal=True, lse=True),
        "attention:block_q=16,block_kv=32,warps=1",
    ),
    "stencil, mma": (str(Depthwise(3, 7, 9, 8, 5).kernel()), "stencil:band=3"),
    "stencil, mma, stride 2": (str(Depthwise(2, 9, 7, 8, 3, 2, "f16").kernel()), "stencil:band=5"),
    "recurrence, fma": (recurrence(2, 1, 4), "recurrence:units=2,warps=1,mma=fma"),
    "recurrence, mma": (recurrence(2, 2, 16, "bf16"), "recurrence:units=8,warps=1,mma=mma"),
    HOPPER: ("", ""),
    "generic": (column_sums(67, 5), "generic_0=generic"),
    **{name: ("", "") for name in (*ORDER, *HANDS)},
}  # fmt: skip


def _operands(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, 3 * K)).astype(ml_dtypes.bfloat16) for n in (M, N)]


def _run_product(text: str, arguments: list[np.ndarray], seed: int, **options) -> tuple[list[np.ndarray], Report]:
    d = np.zeros((M, N), np.float32)
    maps = [TensorMap(x, (len(x), K), 128) for x in arguments]
    shape = ((1, 1, 1), (256, 1, 1), BARRIERS + 16 * STAGES)
    report = run_function(mlir.parse(text), "product", [*maps, d], *shape, seed=seed, **options)
    return [d], report


def _product(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    return [a.astype(np.float32) @ b.astype(np.float32).T]


def lowered(text: str, knobs: str, seed: int = 0) -> tuple[str, list[np.ndarray], list]:
    """A scheduled kernel's `gpu` level as text, its inputs, and the specs of its results."""
    module = mlir.parse(text)
    tiles, _ = Schedules([knobs] if knobs else []).schedule_kernel(module, get_target(TARGET))
    with mlir.context(), ir.Location.unknown():
        arguments = inputs_of(module, seed)
        types = ir.FunctionType(ir.TypeAttr(tiles.body.operations[0].attributes["function_type"]).value).results
        specs = [tensor_spec(t) for t in types]
        mlir.run_passes(tiles, "func.func(linalg-generalize-named-ops)")
        to_gpu(tiles, function_name(tiles), get_target(TARGET))
    return str(tiles), arguments, specs


def case(name: str, inputs: int = 2) -> Case:
    """A kernel of the list at the `gpu` level, with so many sets of random arguments."""
    if name == HOPPER:
        right = Reference([("kernels", _product)], 2)
        return Case(product(3), [_operands(seed) for seed in range(inputs)], [], right, _run_product)
    if name in HANDS:
        hand = HANDS[name]
        return Case(hand.text(), [hand.inputs(seed) for seed in range(inputs)], [], hand.reference, hand.run)
    if name in ORDER:
        text, shape, dtype, right_of = ORDER[name]
        rng = np.random.default_rng(0)
        arguments = [[rng.integers(-9, 9, shape).astype(dtype)] for _ in range(inputs)]
        return Case(text, arguments, right_of(*arguments[0]), Reference([("kernels", right_of)], 1))
    text, arguments, specs = lowered(*KERNELS[name])
    module = mlir.parse(KERNELS[name][0])
    with mlir.context():
        more = [inputs_of(module, seed) for seed in range(1, inputs)]
    return Case(text, [arguments, *more], specs, References({"kernels": module}).of(function_name(module)))
