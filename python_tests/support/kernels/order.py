"""Kernels whose blocks order each other through global memory, at the `gpu` level: what the last block to arrive reduces,
a barrier of the whole grid, flags between producer and consumer blocks, locks. All sums are of small integers, so that
their order does not matter."""

from __future__ import annotations

import numpy as np

SHARED = "#gpu.address_space<workgroup>"
CONSTANTS = tuple(range(8))


def pointer(name: str, buffer: str, t: str, index: str = "%c0") -> str:
    """A pointer %name to element %index of a memref of i32."""
    return f"""
      %{name}_a = memref.extract_aligned_pointer_as_index {buffer} : {t} -> index
      %{name}_n = arith.index_cast %{name}_a : index to i64
      %{name}_b = llvm.inttoptr %{name}_n : i64 to !llvm.ptr<1>
      %{name}_i = arith.index_cast {index} : index to i32
      %{name} = llvm.getelementptr %{name}_b[%{name}_i] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32"""


def load(name: str, at: str, order: str = "acquire") -> str:
    return f'%{name} = llvm.load %{at} atomic syncscope("device") {order} {{alignment = 4 : i64}} : !llvm.ptr<1> -> i32'


def store(value: str, at: str, order: str = "release") -> str:
    return f'llvm.store {value}, %{at} atomic syncscope("device") {order} {{alignment = 4 : i64}} : i32, !llvm.ptr<1>'


def add(name: str, at: str, value: str, order: str = "acq_rel") -> str:
    return f'%{name} = llvm.atomicrmw add %{at}, {value} syncscope("device") {order} : !llvm.ptr<1>, i32'


def wait(name: str, at: str, predicate: str, value: str) -> str:
    """Until a flag no longer compares so with a value."""
    return f"""
      scf.while : () -> () {{
        {load(name, at)}
        %{name}_w = arith.cmpi {predicate}, %{name}, {value} : i32
        scf.condition(%{name}_w)
      }} do {{
        scf.yield
      }}"""


def module(body: str, arguments: dict[str, str], workspaces: dict[str, str], *, blocks: int, threads: int,
           launches: list[dict[str, str]] | None = None, smem: int = 0) -> str:  # fmt: skip
    """A kernel @k_0, launched once for each of `launches` (which argument stands for which parameter; {} as they are
    named), after a kernel that sets the workspace %flags to 0. %t is the thread, %b the block, %c0.. %c7 are indices,
    %i0.. %i7 numbers; %thread0 is whether it is thread 0."""
    every = arguments | workspaces
    parameters = {n: t for n, t in every.items() if not any(n in x.values() for x in launches or [])}
    flags, size = workspaces["flags"], int(workspaces["flags"].split("<")[1].split("x")[0])
    calls = "\n".join(
        "gpu.launch_func @k_gpu::@k_0 blocks in (%blocks, %one, %one) threads in (%threads, %one, %one) "
        "dynamic_shared_memory_size %smem args("
        + ", ".join(f"%{names.get(n, n)} : {t}" for n, t in parameters.items())
        + ")"
        for names in launches or [{}]
    )
    constants = "".join(f"%c{n} = arith.constant {n} : index\n%i{n} = arith.constant {n} : i32\n" for n in CONSTANTS)
    return f"""
module attributes {{gpu.container_module}} {{
  gpu.module @k_gpu {{
    gpu.func @zero(%flags: {flags}) kernel {{
      %t = gpu.thread_id x
      %none = arith.constant 0 : i32
      memref.store %none, %flags[%t] : {flags}
      gpu.return
    }}
    gpu.func @k_0({", ".join(f"%{n}: {t}" for n, t in parameters.items())}) kernel {{
      %t = gpu.thread_id x
      %b = gpu.block_id x
      {constants}
      %blocks = arith.constant {blocks} : index
      %all = gpu.dynamic_shared_memory : memref<?xi8, {SHARED}>
      %thread0 = arith.cmpi eq, %t, %c0 : index
      {body}
      gpu.return
    }}
  }}
  func.func @k({", ".join(f"%{n}: {t}" for n, t in arguments.items())}) {{
    %one = arith.constant 1 : index
    %blocks = arith.constant {blocks} : index
    %threads = arith.constant {threads} : index
    %size = arith.constant {size} : index
    %smem = arith.constant {smem} : i32
    %none = arith.constant 0 : i32
    {"".join(f"%{n} = memref.alloc() : {t}" + chr(10) for n, t in workspaces.items())}
    gpu.launch_func @k_gpu::@zero blocks in (%one, %one, %one) threads in (%size, %one, %one) args(%flags : {flags})
    {calls}
    return
  }}
}}"""


FENCED = """nvvm.memory.barrier <gpu>
        %ticket = memref.atomic_rmw addi %i1, %flags[%tile] : (i32, FLAGS) -> i32
        nvvm.memory.barrier <gpu>"""


def split_k(rows: int = 37, depth: int = 11, splits: int = 3, fenced: bool = True, threads: int = 64) -> str:
    """y = sum of a [depth, rows] over its depth, `splits` blocks for each tile of rows: the last of them to arrive adds
    what all have computed, and resets the counter. Two launches, to y and to z."""
    tiles = -(-rows // threads)
    matrix, vector = f"memref<{depth}x{rows}xf32>", f"memref<{rows}xf32>"
    partials, flags, word = f"memref<{splits}x{rows}xf32>", f"memref<{tiles}xi32>", f"memref<1xi32, {SHARED}>"
    ticket = FENCED.replace("FLAGS", flags) if fenced else add("ticket", "counter", "%i1")
    body = f"""
      %splits = arith.constant {splits} : index
      %last_ticket = arith.constant {splits - 1} : i32
      %depth = arith.constant {depth} : index
      %rows = arith.constant {rows} : index
      %wide = arith.constant {threads} : index
      %zero = arith.constant 0.0 : f32
      %split = arith.remui %b, %splits : index
      %tile = arith.divui %b, %splits : index
      %base = arith.muli %tile, %wide : index
      %row = arith.addi %base, %t : index
      %mine = arith.cmpi ult, %row, %rows : index
      %s = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to {word}
      {pointer("counter", "%flags", flags, "%tile")}
      scf.if %mine {{
        %sum = scf.for %k = %split to %depth step %splits iter_args(%v = %zero) -> f32 {{
          %x = memref.load %a[%k, %row] : {matrix}
          %w = arith.addf %v, %x : f32
          scf.yield %w : f32
        }}
        memref.store %sum, %p[%split, %row] : {partials}
      }}
      gpu.barrier
      scf.if %thread0 {{
        {ticket}
        memref.store %ticket, %s[%c0] : {word}
      }}
      gpu.barrier
      %got = memref.load %s[%c0] : {word}
      %last = arith.cmpi eq, %got, %last_ticket : i32
      scf.if %last {{
        scf.if %mine {{
          %sum = scf.for %k = %c0 to %splits step %c1 iter_args(%v = %zero) -> f32 {{
            %x = memref.load %p[%k, %row] : {partials}
            %w = arith.addf %v, %x : f32
            scf.yield %w : f32
          }}
          memref.store %sum, %y[%row] : {vector}
        }}
        scf.if %thread0 {{
          memref.store %i0, %flags[%tile] : {flags}
        }}
      }}"""
    return module(
        body, {"a": matrix, "y": vector, "z": vector}, {"p": partials, "flags": flags}, blocks=splits * tiles,
        threads=threads, launches=[{}, {"y": "z"}], smem=16,
    )  # fmt: skip


def split_k_right(a: np.ndarray) -> list[np.ndarray]:
    return [a.sum(axis=0, dtype=np.float32)] * 2


def grid_barrier(n: int = 150, steps: int = 3, threads: int = 64, blocks: int | None = None, smem: int = 0) -> str:
    """Steps of y[i] = x[i - 1] + x[i + 1] around a ring of n, with a barrier of the grid behind each: a counter of
    arrivals, and a generation that the last one to arrive ends. Results lie in row `steps` of y."""
    ring, out, flags = f"memref<{n}xi32>", f"memref<{steps + 1}x{n}xi32>", "memref<2xi32>"
    blocks = blocks or -(-n // threads)
    meet = f"""
        gpu.barrier
        scf.if %thread0 {{
          {load("old", "generation", "monotonic")}
          {add("arrived", "count", "%i1")}
          %last = arith.cmpi eq, %arrived, %others : i32
          scf.if %last {{
            {store("%i0", "count", "monotonic")}
            {add("next", "generation", "%i1", "release")}
          }} else {{
            {wait("now", "generation", "eq", "%old")}
          }}
        }}
        gpu.barrier"""
    body = f"""
      %n = arith.constant {n} : index
      %wide = arith.constant {threads} : index
      %steps = arith.constant {steps} : index
      %others = arith.constant {blocks - 1} : i32
      %before = arith.constant {n - 1} : index
      {pointer("count", "%flags", flags)}
      {pointer("generation", "%flags", flags, "%c1")}
      %base = arith.muli %b, %wide : index
      %i = arith.addi %base, %t : index
      %mine = arith.cmpi ult, %i, %n : index
      %l0 = arith.addi %i, %before : index
      %left = arith.remui %l0, %n : index
      %r0 = arith.addi %i, %c1 : index
      %right = arith.remui %r0, %n : index
      scf.if %mine {{
        %v = memref.load %x[%i] : {ring}
        memref.store %v, %y[%c0, %i] : {out}
      }}
      scf.for %step = %c0 to %steps step %c1 {{
        {meet}
        %to = arith.addi %step, %c1 : index
        scf.if %mine {{
          %u = memref.load %y[%step, %left] : {out}
          %w = memref.load %y[%step, %right] : {out}
          %sum = arith.addi %u, %w : i32
          memref.store %sum, %y[%to, %i] : {out}
        }}
      }}"""
    return module(body, {"x": ring, "y": out}, {"flags": flags}, blocks=blocks, threads=threads, smem=smem)


def grid_barrier_right(x: np.ndarray, steps: int = 3) -> list[np.ndarray]:
    rows = [x]
    for _ in range(steps):
        rows.append(np.roll(rows[-1], 1) + np.roll(rows[-1], -1))
    return [np.stack(rows)]


def producer_consumer(pairs: int = 2, tiles: int = 5, slots: int = 2, width: int = 37, threads: int = 64) -> str:
    """Block 2p doubles the tiles of x [pairs, tiles, width] and hands them to block 2p + 1, which adds 1, over a ring of
    slots in global memory: the flag `full` counts the tiles that are there, `empty` those that have been taken."""
    data, ring = f"memref<{pairs}x{tiles}x{width}xi32>", f"memref<{pairs}x{slots}x{width}xi32>"
    flags = f"memref<{2 * pairs}xi32>"

    def tile(body: str) -> str:
        return f"""
        scf.for %tile = %c0 to %tiles step %c1 {{
          %slot = arith.remui %tile, %slots : index
          %done = arith.addi %tile, %c1 : index
          %number = arith.index_cast %done : index to i32
          {body}
        }}"""

    produce = tile(f"""
          %least = arith.subi %number, %islots : i32
          scf.if %thread0 {{
            {wait("taken", "empty", "slt", "%least")}
          }}
          gpu.barrier
          scf.if %mine {{
            %v = memref.load %x[%pair, %tile, %t] : {data}
            %w = arith.muli %v, %i2 : i32
            memref.store %w, %r[%pair, %slot, %t] : {ring}
          }}
          gpu.barrier
          scf.if %thread0 {{
            {store("%number", "full")}
          }}""")
    consume = tile(f"""
          scf.if %thread0 {{
            {wait("there", "full", "slt", "%number")}
          }}
          gpu.barrier
          scf.if %mine {{
            %v = memref.load %r[%pair, %slot, %t] : {ring}
            %w = arith.addi %v, %i1 : i32
            memref.store %w, %y[%pair, %tile, %t] : {data}
          }}
          gpu.barrier
          scf.if %thread0 {{
            {store("%number", "empty")}
          }}""")
    body = f"""
      %tiles = arith.constant {tiles} : index
      %slots = arith.constant {slots} : index
      %islots = arith.constant {slots} : i32
      %width = arith.constant {width} : index
      %pair = arith.divui %b, %c2 : index
      %role = arith.remui %b, %c2 : index
      %flag = arith.muli %pair, %c2 : index
      %flag1 = arith.addi %flag, %c1 : index
      {pointer("full", "%flags", flags, "%flag")}
      {pointer("empty", "%flags", flags, "%flag1")}
      %mine = arith.cmpi ult, %t, %width : index
      %producer = arith.cmpi eq, %role, %c0 : index
      scf.if %producer {{
        {produce}
      }} else {{
        {consume}
      }}"""
    return module(body, {"x": data, "y": data}, {"r": ring, "flags": flags}, blocks=2 * pairs, threads=threads)


def producer_consumer_right(x: np.ndarray) -> list[np.ndarray]:
    return [2 * x + 1]


LOCKS = {
    "ticket": (
        add("ticket", "lock", "%i1", "monotonic") + "\n" + wait("serving", "turn", "ne", "%ticket"),
        add("next", "turn", "%i1", "release"),
    ),
    "test and set": (
        """scf.while : () -> () {
            %try = llvm.cmpxchg %lock, %i0, %i1 syncscope("device") acquire monotonic : !llvm.ptr<1>, i32
            %was = llvm.extractvalue %try[0] : !llvm.struct<(i32, i1)>
            %again = arith.cmpi ne, %was, %i0 : i32
            scf.condition(%again)
          } do {
            scf.yield
          }""",
        store("%i0", "lock"),
    ),
    "exchange and fences": (
        """scf.while : () -> () {
            %was = llvm.atomicrmw xchg %lock, %i1 syncscope("device") monotonic : !llvm.ptr<1>, i32
            %again = arith.cmpi ne, %was, %i0 : i32
            scf.condition(%again)
          } do {
            scf.yield
          }
          llvm.fence syncscope("device") acquire""",
        'llvm.fence syncscope("device") release\n' + store("%i0", "lock", "monotonic"),
    ),
}  # fmt: skip


def locked_sum(kind: str, blocks: int = 5, width: int = 37, threads: int = 64) -> str:
    """y = sum of x [blocks, width] over the blocks, each of which adds its row while it holds a lock."""
    rows, out, flags = f"memref<{blocks}x{width}xi32>", f"memref<{width}xi32>", "memref<3xi32>"
    lock, unlock = LOCKS[kind]
    body = f"""
      %width = arith.constant {width} : index
      %mine = arith.cmpi ult, %t, %width : index
      {pointer("lock", "%flags", flags)}
      {pointer("turn", "%flags", flags, "%c1")}
      scf.if %thread0 {{
        {lock}
        %count = memref.load %flags[%c2] : {flags}
        %more = arith.addi %count, %i1 : i32
        memref.store %more, %flags[%c2] : {flags}
      }}
      gpu.barrier
      scf.if %mine {{
        %count = memref.load %flags[%c2] : {flags}
        %first = arith.cmpi eq, %count, %i1 : i32
        %v = memref.load %x[%b, %t] : {rows}
        %old = scf.if %first -> i32 {{
          scf.yield %i0 : i32
        }} else {{
          %o = memref.load %y[%t] : {out}
          scf.yield %o : i32
        }}
        %w = arith.addi %old, %v : i32
        memref.store %w, %y[%t] : {out}
      }}
      gpu.barrier
      scf.if %thread0 {{
        {unlock}
      }}"""
    if "turn" not in lock:
        body = body.replace(pointer("turn", "%flags", flags, "%c1"), "")
    return module(body, {"x": rows, "y": out}, {"flags": flags}, blocks=blocks, threads=threads)


def locked_sum_right(x: np.ndarray) -> list[np.ndarray]:
    return [x.sum(axis=0, dtype=np.int32)]
