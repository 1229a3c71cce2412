"""What the `repro.py` files of `mlirc --dump-dir` share: run one compiled kernel and compare it with PyTorch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mlirc.check.gates import GATES, gate_of, relative_error
from mlirc.errors import MlircError
from mlirc.precision import DEFAULT_FP32
from mlirc.tools.cli import run_main

# ||out - ref|| / ||ref|| above this fails, by the result's dtype; exact for everything else.


def attention(
    q: Any,
    k: Any,
    v: Any,
    *more: Any,
    scale: float,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    layouts: Sequence[str] = ("bhsd",) * 4,
    nan_rows: bool = False,
    score: Sequence[str] = (),
    softmax: bool = True,
    sinks: Any = None,
    lse: bool = False,
) -> Any:
    """`mlirc.attention` and, with sinks, `mlirc.sink_attention` in PyTorch, with f32 accumulation; see
    docs/architecture.md for their meaning. `more` is a mask, or the inputs of a function of the scores. With `lse` the
    result is a pair with the log-sum-exp."""
    import torch

    from mlirc.dialects.score_functions import torch_score
    from mlirc.frontend.head_vectors import softmax_with

    q, k, v = (x.permute([layout.index(c) for c in "bhsd"]) for x, layout in zip((q, k, v), layouts, strict=False))
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    groups, sq, sk = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    k, v = (x.to(wide).repeat_interleave(groups, 1) for x in (k, v))
    scores = q.to(wide) @ k.transpose(-1, -2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    i, j = torch.arange(sq)[:, None] + sk - sq, torch.arange(sk)[None, :]
    visible = torch.ones(sq, sk, dtype=torch.bool)
    if causal:
        visible &= j <= i
    if window:
        visible &= j > i - window
    mask = more[0] if more and not score else None
    if score:
        place = [torch.arange(n).view([-1 if d == at else 1 for d in range(4)]) for at, n in enumerate(scores.shape)]
        scores = torch_score(tuple(score), scores, place, more)
    if mask is not None and mask.dtype == torch.bool:
        visible = visible & mask
    elif mask is not None:
        scores = scores + mask.to(wide)
    scores = scores.masked_fill(~visible, float("-inf") if softmax else 0.0)
    if softmax:
        shares = softmax_with(scores, sinks)
        shares = shares if nan_rows and sinks is None else shares.nan_to_num(0.0)
    else:
        shares = scores
    result = (shares @ v).to(q.dtype).permute(["bhsd".index(c) for c in layouts[3]]).contiguous()
    return (result, scores.logsumexp(-1)) if lse else result


def cached_attention(
    q: Any,
    k: Any,
    v: Any,
    pages: Any,
    lengths: Any,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    layouts: Sequence[str] = ("bhsd",) * 4,
    slopes: Any = None,
    sinks: Any = None,
) -> Any:
    """`mlirc.cached_attention` in PyTorch, with f32 accumulation."""
    from mlirc.frontend.cached_attention import cached_attention as plain

    q, k, v = (x.permute([layout.index(c) for c in "bhsd"]) for x, layout in zip((q, k, v), layouts, strict=False))
    out = plain(q, k, v, pages, lengths, scale, window, softcap, slopes, sinks)
    return out.permute(["bhsd".index(c) for c in layouts[3]]).contiguous()


def host_reference(folder: Path, function: str) -> Callable[..., tuple]:
    """The kernel's meaning as computed on the CPU from its `kernels` level, for those that PyTorch has no words for."""

    def reference(*inputs: Any) -> tuple:
        return _run_level(folder, "kernels", inputs)

    return reference


def _run_level(folder: Path, level: str, inputs: Sequence[Any]) -> tuple:
    from mlirc.host.level_files import Levels
    from mlirc.host.tensors import run_level
    from mlirc.runtime.loading import read_model

    path = folder / "model.ptx"
    edited = Levels.beside(path, read_model(path)[1], verify=False)  # as people do here
    return tuple(run_level(edited.module(level), inputs, {}))


def main(folder: Path, reference: Callable[..., tuple], inputs: Sequence[Any], fp32: str = DEFAULT_FP32) -> int:
    """Runs the kernel in `folder` on `inputs` and prints its error against `reference`, or against the reference that
    its script states; 1 when it is too large. `fp32`: how its FP32 products may be made."""
    parser = argparse.ArgumentParser(description="Compares one compiled kernel with PyTorch.")
    help_text = (
        "gpu; or on the CPU kernels, tiles, or host, the compiled kernel on the host device, which checks it "
        "(default: gpu if there is one, else tiles and host)"
    )
    parser.add_argument("--level", choices=["gpu", "kernels", "tiles", "host"], help=help_text)
    level = parser.parse_args().level
    return run_main(lambda: _compare(folder, reference, inputs, level, fp32))


def _compare(folder: Path, reference: Callable[..., tuple], inputs: Sequence[Any], level: str | None, fp32: str) -> int:
    import torch

    chosen = [level] if level else ["gpu"] if torch.cuda.is_available() else ["tiles", "host"]
    stated = _stated(folder)
    if stated.reference is not None:
        reference = _stated_reference(folder, stated)
    wanted = reference(*[x.clone() for x in inputs])
    status = 0
    if stated.by:
        print(f"{folder.name}: {stated}")
    for each in chosen:
        got = _run(folder, each, inputs)
        allowed = fp32 if each in ("gpu", "host") else DEFAULT_FP32  # the CPU's products are FP32's
        if len(got) != len(wanted):
            raise MlircError(f"{folder.name}: {len(got)} results, but PyTorch gives {len(wanted)}")
        for i, (out, ref) in enumerate(zip(got, wanted, strict=True)):
            error, limit = relative_error(out, ref), gate_of(ref.dtype, 0.0, allowed)
            rounds = GATES[stated.rounds] if stated.rounds and each in ("gpu", "host") else 0.0
            limit = max(limit, stated.tolerance + rounds)
            verdict = "ok" if error <= limit else "WRONG"
            status |= error > limit
            what = f"{folder.name} result {i} {ref.dtype} {list(ref.shape)}"
            print(f"{what}: error {error:.2e} ({_PLACES[each]}) {verdict}")
    sys.stdout.flush()
    return status


def _stated(folder: Path) -> Any:
    """What the kernel's script or instruction states of it (`mlirc.ir.levels.Stated`)."""
    from mlirc import mlir
    from mlirc.ir import levels

    path = folder / "model.levels" / "tiles.mlir"
    found = levels.stated(mlir.parse(path.read_text(), str(path))) if path.exists() else {}
    return found.get(folder.name, levels.Stated())


def _stated_reference(folder: Path, stated: Any) -> Callable[..., tuple]:
    from mlirc.host.jit import HostFunction
    from mlirc.host.tensors import from_numpy, to_numpy
    from mlirc.ir import levels

    function = HostFunction(levels.as_stated(stated.reference, folder.name, stated), folder.name)
    return lambda *inputs: tuple(from_numpy(r) for r in function(*map(to_numpy, inputs)))


_PLACES = {
    "gpu": "level gpu",
    "host": "level gpu on the host device, no findings",
    "tiles": "level tiles on the CPU",
    "kernels": "level kernels on the CPU",
}


def _run(folder: Path, level: str, inputs: Sequence[Any]) -> list[Any]:
    """The kernel's results at a level, as torch tensors on the CPU."""
    if level in ("kernels", "tiles"):
        return list(_run_level(folder, level, inputs))
    import torch

    from mlirc.runtime import load

    given = [x.cuda() for x in inputs] if level == "gpu" else inputs
    out = load(str(folder / "model.ptx"), device="host" if level == "host" else 0, verify=False)(*given)
    # A kernel without inputs says by none of them that torch tensors are wanted: its results are arrays.
    return [torch.as_tensor(x).cpu() for x in (out if isinstance(out, tuple | list) else (out,))]
