"""The part of the CUDA driver API that the runtime uses, through `cuda.bindings.driver`.

Everything above this file takes a `Driver`, so that tests can put another object with the same methods in its place.
Pointers and streams are plain integers; sizes are bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mlirc.errors import MlircError
from mlirc.runtime.tensor_map import ADDRESS_ALIGNMENT, FP8, MAP_ALIGNMENT, MAP_BYTES, TensorMapSpec

# What a tensor map calls elements: only their size matters to copies, and to sums their type.
_MAP_TYPES = {"f64": "FLOAT64", "f32": "FLOAT32", "f16": "FLOAT16", "bf16": "BFLOAT16", "i64": "INT64", "i32": "INT32",
              "i16": "UINT16", "i8": "UINT8", "u8": "UINT8", "i1": "UINT8"} | dict.fromkeys(FP8, "UINT8")  # fmt: skip
NO_GPU = "without a GPU, `mlirc-run --level linalg|kernels|tiles|gpu` runs that level on the CPU"
EARLY_FROM = 12030  # the driver's version (CUDA 12.3) from which graphs have edges of early launches
PORTABLE_CLUSTER = 8  # blocks; a launch of larger clusters has to opt in (CUDA C++ guide, thread block clusters)
DEFAULT_SMEM = 48 * 1024  # a launch with more dynamic shared memory has to opt in (CUDA C++ guide, shared memory)


@dataclass
class KernelCall:
    """A launch with its addresses: what `Driver.launch` and graph nodes take. The kernel gets an address as it is, or,
    where `maps` has its number, a tensor map of what lies there, where `values` has it, these bytes, and where `tables`
    has it, an array of addresses, of which it is the first. `dependent`: it may begin before the kernel in front of it
    has ended, for which it waits itself. `cooperative`: all of its blocks have to be resident at once.
    A grid of no blocks: nothing is launched."""

    function: Any
    symbol: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem: int
    pointers: list[int]
    cluster: tuple[int, int, int] | None = None
    maps: Mapping[int, TensorMapSpec] = field(default_factory=dict)
    dependent: bool = False
    values: Mapping[int, bytes] = field(default_factory=dict)
    tables: Mapping[int, Sequence[int]] = field(default_factory=dict)
    cooperative: bool = False


@dataclass
class CopyCall:
    """A device-to-device copy with its addresses."""

    target: int
    source: int
    size: int


Call = KernelCall | CopyCall


def check_target(target: str, cc: int, gpu: str) -> None:
    """Raises MlircError unless a GPU of compute capability `cc` (90 for 9.0) runs PTX made for `target`.

    PTX runs on its own generation and later ones; that of a target with the suffix `a` uses instructions of just that
    generation (PTX ISA, directive .target).
    """
    match = re.fullmatch(r"sm_(\d+)([af]?)", target)
    if match is None:
        raise MlircError(f"plan: unknown target '{target}'")
    wanted, suffix = int(match[1]), match[2]
    have = f"{gpu} is sm_{cc}"
    if cc < wanted:
        raise MlircError(f"compiled for {target}, but {have}, which is older: compile again with a lower --target")
    if suffix == "a" and cc != wanted or suffix == "f" and cc // 10 != wanted // 10:
        raise MlircError(f"compiled for {target}, which runs on sm_{wanted} only, but {have}: compile again for it")


class Graph(Protocol):
    """Calls that are launched as one."""

    def update(self, index: int, call: Call) -> None: ...
    def launch(self, stream: int) -> None: ...
    def close(self) -> None: ...


def pack(parameters: Sequence[int | bytes]) -> tuple[Any, Any]:
    """Kernel parameters as the driver wants them: an array of pointers to the values, and the memory it points into.
    Each parameter is a pointer, or bytes by value."""
    places, size = [], 0
    for value in parameters:
        align, length = (MAP_ALIGNMENT, len(value)) if isinstance(value, bytes) else (8, 8)
        size = -(-size // align) * align
        places.append(size)
        size += length
    memory = ctypes.create_string_buffer(size + MAP_ALIGNMENT)
    base = -(-ctypes.addressof(memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
    for place, value in zip(places, parameters, strict=True):
        raw = value if isinstance(value, bytes) else value.to_bytes(8, "little")
        ctypes.memmove(base + place, raw, len(raw))
    table = (ctypes.c_void_p * max(len(places), 1))(*(base + place for place in places))
    return table, memory


class Driver:
    """One device, through its primary context, which PyTorch uses too."""

    def __init__(self, ordinal: int = 0):
        try:
            from cuda.bindings import driver as cu
        except ImportError as e:
            raise MlircError(f"running on a GPU needs the package cuda-bindings ({e}); {NO_GPU}") from e
        self.cu = cu
        self.ordinal = ordinal
        try:
            status = cu.cuInit(0)[0]
        except Exception as e:  # the bindings raise classes of their own when libcuda is not there
            raise MlircError(f"no CUDA driver on this machine ({type(e).__name__}); {NO_GPU}") from e
        if status != cu.CUresult.CUDA_SUCCESS:
            raise MlircError(f"no usable GPU on this machine ({status.name}); {NO_GPU}")
        count = self._check(cu.cuDeviceGetCount(), "counting devices")
        if not 0 <= ordinal < count:
            raise MlircError(
                f"device {ordinal}: this machine has {count} GPU(s)" + (f"; {NO_GPU}" if not count else "")
            )
        self._device = self._check(cu.cuDeviceGet(ordinal), "opening the device")
        attribute = cu.CUdevice_attribute
        major, minor = (
            self._check(cu.cuDeviceGetAttribute(a, self._device), "reading the compute capability")
            for a in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self.cc = 10 * major + minor
        # Without, every launch begins when the one in front of it has ended, which is as right, and slower.
        self.launches_early = self._check(cu.cuDriverGetVersion(), "reading the driver's version") >= EARLY_FROM
        name = self._check(cu.cuDeviceGetName(128, self._device), "reading the device's name")
        self.name = name.split(b"\0")[0].decode(errors="replace")
        self._context = self._check(cu.cuDevicePrimaryCtxRetain(self._device), "opening the primary context")
        self._map = functools.lru_cache(maxsize=1024)(self._encode)

    def _check(self, result: tuple, doing: str) -> Any:
        """The values of a driver call's result, or MlircError with the driver's own name for what went wrong."""
        status, *values = result
        if status != self.cu.CUresult.CUDA_SUCCESS:
            sticky = ("ILLEGAL_ADDRESS", "LAUNCH_FAILED", "MISALIGNED", "ILLEGAL_INSTRUCTION", "ASSERT")
            hint = "; the CUDA context is unusable from here on" if any(s in status.name for s in sticky) else ""
            raise MlircError(f"CUDA: {doing} failed: {status.name}{hint}")
        return values[0] if len(values) == 1 else tuple(values) or None

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Makes the device's context the calling thread's for the duration."""
        self._check(self.cu.cuCtxPushCurrent(self._context), "entering the context")
        try:
            yield
        finally:
            self.cu.cuCtxPopCurrent()

    def close(self) -> None:
        """Gives the primary context back; the object is of no use afterwards."""
        self.cu.cuDevicePrimaryCtxRelease(self._device)

    # Memory

    def alloc(self, size: int) -> int:
        """Device memory of at least `size` bytes, aligned to 256."""
        status, pointer = self.cu.cuMemAlloc(max(size, 1))
        if status == self.cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MlircError(f"{self.name}: out of memory: {size:,} bytes are not free")
        return int(self._check((status, pointer), f"allocating {size:,} bytes"))

    def free(self, pointer: int) -> None:
        self.cu.cuMemFree(pointer)

    def copy_in(self, target: int, host: int, size: int, stream: int) -> None:
        """Host to device; pageable memory may be reused as soon as this returns."""
        self._check(self.cu.cuMemcpyHtoDAsync(target, host, size, stream), "copying to the device")

    def copy_out(self, host: int, source: int, size: int, stream: int) -> None:
        """Device to host; complete after `synchronize(stream)`."""
        self._check(self.cu.cuMemcpyDtoHAsync(host, source, size, stream), "copying from the device")

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        self._check(self.cu.cuMemcpyDtoDAsync(target, source, size, stream), "copying on the device")

    def copy_rows(
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, count: int, stream: int
    ) -> None:
        """Copies `count` rows of `width` bytes on the device, which begin `target_pitch` and `source_pitch` apart."""
        about, device = self.cu.CUDA_MEMCPY2D(), self.cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
        about.srcMemoryType = about.dstMemoryType = device
        about.srcDevice, about.srcPitch, about.dstDevice, about.dstPitch = source, source_pitch, target, target_pitch
        about.WidthInBytes, about.Height = width, count
        self._check(self.cu.cuMemcpy2DAsync(about, stream), "copying on the device")

    def alloc_host(self, size: int) -> int:
        """Page-locked host memory of at least `size` bytes, to and from which copies go without waiting."""
        return int(self._check(self.cu.cuMemAllocHost(max(size, 1)), f"allocating {size:,} bytes on the host"))

    def free_host(self, pointer: int) -> None:
        self.cu.cuMemFreeHost(pointer)

    # Streams and events

    def event(self) -> Any:
        """A new event, which takes no times."""
        flags = self.cu.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
        return self._check(self.cu.cuEventCreate(flags), "creating an event")

    def destroy_event(self, event: Any) -> None:
        self.cu.cuEventDestroy(event)

    def record(self, event: Any, stream: int) -> None:
        """The event has come when what a stream has been given so far is done."""
        self._check(self.cu.cuEventRecord(event, stream), "recording an event")

    def wait(self, event: Any) -> None:
        """Waits on the host for an event."""
        self._check(self.cu.cuEventSynchronize(event), "running the model")

    def stream(self) -> int:
        """A new stream that does not wait for the legacy default stream."""
        flags = self.cu.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        return int(self._check(self.cu.cuStreamCreate(flags), "creating a stream"))

    def is_capturing(self, stream: int) -> bool:
        """Whether a stream's work becomes a graph, and is not done."""
        status = self._check(self.cu.cuStreamIsCapturing(stream), "asking for a stream's state")
        return bool(status != self.cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def destroy_stream(self, stream: int) -> None:
        self.cu.cuStreamDestroy(stream)

    def synchronize(self, stream: int | None = None) -> None:
        """Waits for a stream, or for everything that the context runs."""
        result = self.cu.cuCtxSynchronize() if stream is None else self.cu.cuStreamSynchronize(stream)
        self._check(result, "running the model")

    # Kernels

    def load(self, ptx: str, where: str) -> Any:
        """Compiles PTX for the device; MlircError carries the log of the driver's own assembler."""
        cu, option = self.cu, self.cu.CUjit_option
        log = bytearray(8192)
        options = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        status, module = cu.cuModuleLoadDataEx(ptx.encode() + b"\0", len(options), options, [log, len(log)])
        if status != cu.CUresult.CUDA_SUCCESS:
            said = " ".join(bytes(log).split(b"\0")[0].decode(errors="replace").split())
            raise MlircError(f"{where}: the driver refused the PTX: {status.name}{': ' + said if said else ''}")
        return module

    def unload(self, module: Any) -> None:
        self.cu.cuModuleUnload(module)

    def function(self, module: Any, symbol: str, smem: int, cluster: int = 1) -> Any:
        """The kernel `symbol`, prepared for launches with up to `smem` bytes of dynamic shared memory, and for
        clusters of up to so many blocks."""
        function = self._check(self.cu.cuModuleGetFunction(module, symbol.encode()), f"finding kernel {symbol}")
        if smem > DEFAULT_SMEM:
            attribute = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            result = self.cu.cuFuncSetAttribute(function, attribute, smem)
            self._check(result, f"kernel {symbol}: reserving {smem} bytes of shared memory on {self.name}")
        if cluster > PORTABLE_CLUSTER:
            attribute = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            result = self.cu.cuFuncSetAttribute(function, attribute, 1)
            self._check(result, f"kernel {symbol}: allowing clusters of {cluster} blocks on {self.name}")
        return function

    def launch(self, call: Call, stream: int) -> None:
        """Enqueues one call."""
        cu = self.cu
        if isinstance(call, CopyCall):
            self.copy(call.target, call.source, call.size, stream)
            return
        if 0 in call.grid:
            return
        table, values = self.parameters(call)
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = call.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = call.block
        config.sharedMemBytes = call.smem
        config.hStream = stream
        ids, attributes = cu.CUlaunchAttributeID, []
        if call.cluster:
            attributes.append(cu.CUlaunchAttribute())
            attributes[-1].id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attributes[-1].value = self._cluster_value(call.cluster)
        if call.dependent and self.launches_early:
            attributes.append(cu.CUlaunchAttribute())
            attributes[-1].id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            value = cu.CUlaunchAttributeValue()
            value.programmaticStreamSerializationAllowed = 1
            attributes[-1].value = value
        if call.cooperative:
            attributes.append(cu.CUlaunchAttribute())
            attributes[-1].id = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attributes[-1].value = self._cooperative_value()
        if attributes:
            config.attrs, config.numAttrs = attributes, len(attributes)
        result = cu.cuLaunchKernelEx(config, call.function, ctypes.addressof(table), 0)
        del values  # the driver has read them
        self._check(result, f"launching kernel {call.symbol}")

    def parameters(self, call: KernelCall) -> tuple[Any, Any]:
        """What `pack` makes of a call's addresses, and of what it gives by value."""
        return pack([self._parameter(call, i, pointer) for i, pointer in enumerate(call.pointers)])

    def _parameter(self, call: KernelCall, number: int, pointer: int) -> int | bytes:
        if number in call.values:
            return call.values[number]
        if number in call.tables:
            return b"".join(p.to_bytes(8, "little") for p in (pointer, *call.tables[number]))
        return self._map(call.maps[number], pointer) if number in call.maps else pointer

    def _encode(self, spec: TensorMapSpec, pointer: int) -> bytes:
        """The CUtensorMap of what lies at an address."""
        cu = self.cu
        kind = getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_MAP_TYPES[spec.dtype]}")
        swizzle = f"CU_TENSOR_MAP_SWIZZLE_{spec.swizzle}B" if spec.swizzle else "CU_TENSOR_MAP_SWIZZLE_NONE"
        rank = len(spec.shape)

        def inner_first(number: Callable, items: Sequence[int]) -> list:
            return [number(n) for n in reversed(items)]  # as the driver counts dimensions

        # One dimension has no stride that counts, but no array of strides would be a null pointer.
        strides = spec.strides[:-1] or (-(-spec.nbytes // ADDRESS_ALIGNMENT) * ADDRESS_ALIGNMENT,)
        of = kind, rank, pointer, *(inner_first(cu.cuuint64_t, n) for n in (spec.shape, strides))
        how = (
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(cu.CUtensorMapSwizzle, swizzle),
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        if spec.im2col is None:
            boxes = inner_first(cu.cuuint32_t, spec.box), inner_first(cu.cuuint32_t, [1] * rank)
            result = cu.cuTensorMapEncodeTiled(*of, *boxes, *how)
        else:
            (pixels, channels), corners = spec.box, (spec.im2col.lower, spec.im2col.upper)
            steps = inner_first(cu.cuuint32_t, [1, *spec.im2col.strides, 1])
            lower, upper = (inner_first(int, c) for c in corners)
            result = cu.cuTensorMapEncodeIm2col(*of, lower, upper, channels, pixels, steps, *how)
        made = self._check(result, f"making a tensor map of {spec}")
        return ctypes.string_at(int(made.getPtr()), MAP_BYTES)

    def _cluster_value(self, cluster: tuple[int, int, int]) -> Any:
        value = self.cu.CUkernelNodeAttrValue()  # a CUlaunchAttributeValue, too
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster
        return value

    def _cooperative_value(self) -> Any:
        value = self.cu.CUkernelNodeAttrValue()
        value.cooperative = 1
        return value

    def graph(self, calls: Sequence[Call], waits: Sequence[tuple[int, ...]]) -> Graph:
        """An executable CUDA graph of the calls, each behind the earlier ones whose numbers `waits` has for it."""
        return CudaGraph(self, calls, waits)


class CudaGraph:
    """An executable graph with a handle on each node, so that a call's addresses can change without a new graph."""

    def __init__(self, driver: Driver, calls: Sequence[Call], waits: Sequence[tuple[int, ...]]):
        self._driver, self._check = driver, driver._check
        cu = driver.cu
        self._graph = self._check(cu.cuGraphCreate(0), "creating a graph")
        self._exec = None
        self._nodes: list[Any] = []
        self._left_out: set[int] = set()
        try:
            for before, call, numbers in zip([None, *calls], calls, waits, strict=False):
                follows = isinstance(call, KernelCall) and call.dependent and isinstance(before, KernelCall)
                if isinstance(call, KernelCall) and follows and driver.launches_early:
                    node = self._add(call, [])
                    self._follow(self._nodes[-1], node, call)
                else:
                    node = self._add(call, [self._nodes[n] for n in numbers])
                self._nodes.append(node)
            self._exec = self._check(cu.cuGraphInstantiate(self._graph, 0), "instantiating the graph")
            for index, call in enumerate(calls):
                self._enable(index, call)
        except BaseException:
            self.close()
            raise

    def _kernel_params(self, call: KernelCall) -> tuple[Any, Any]:
        params = self._driver.cu.CUDA_KERNEL_NODE_PARAMS()
        params.func = call.function
        params.gridDimX, params.gridDimY, params.gridDimZ = (max(extent, 1) for extent in call.grid)
        params.blockDimX, params.blockDimY, params.blockDimZ = call.block
        params.sharedMemBytes = call.smem
        memory = self._driver.parameters(call)
        params.kernelParams = ctypes.addressof(memory[0])
        return params, memory  # the driver copies the values; `memory` only has to live through that call

    def _copy_params(self, call: CopyCall) -> Any:
        cu = self._driver.cu
        params = cu.CUDA_MEMCPY3D()
        params.srcMemoryType = params.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
        params.srcDevice, params.dstDevice = call.source, call.target
        params.WidthInBytes, params.Height, params.Depth = call.size, 1, 1
        return params

    def _add(self, call: Call, after: list) -> Any:
        cu = self._driver.cu
        if isinstance(call, CopyCall):
            params = self._copy_params(call)
            result = cu.cuGraphAddMemcpyNode(self._graph, after, len(after), params, self._driver._context)
            return self._check(result, "adding a copy to the graph")
        params, memory = self._kernel_params(call)
        node = self._check(
            cu.cuGraphAddKernelNode(self._graph, after, len(after), params),
            f"adding kernel {call.symbol} to the graph",
        )
        del memory
        if call.cluster:
            attribute = cu.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            value = self._driver._cluster_value(call.cluster)
            self._check(cu.cuGraphKernelNodeSetAttribute(node, attribute, value), f"clustering kernel {call.symbol}")
        if call.cooperative:
            attribute, value = cu.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, self._driver._cooperative_value()
            self._check(cu.cuGraphKernelNodeSetAttribute(node, attribute, value), f"launching kernel {call.symbol}")
        return node

    def _follow(self, before: Any, node: Any, call: KernelCall) -> None:
        """Lets a kernel begin when the blocks of the one before it allow it, at the latest when they have ended (CUDA
        driver API, CUgraphEdgeData)."""
        cu = self._driver.cu
        edge = cu.CUgraphEdgeData()
        edge.from_port = cu.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
        edge.type = cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.value
        add = getattr(cu, "cuGraphAddDependencies_v2", cu.cuGraphAddDependencies)  # the name until CUDA 13
        self._check(add(self._graph, [before], [node], [edge], 1), f"letting kernel {call.symbol} begin early")

    def update(self, index: int, call: Call) -> None:
        """Gives node `index` new addresses; launches already enqueued keep the old ones."""
        cu, node = self._driver.cu, self._nodes[index]
        if isinstance(call, CopyCall):
            params = self._copy_params(call)
            result = cu.cuGraphExecMemcpyNodeSetParams(self._exec, node, params, self._driver._context)
        else:
            params, memory = self._kernel_params(call)
            result = cu.cuGraphExecKernelNodeSetParams(self._exec, node, params)
            del memory
        self._check(result, "updating the graph")
        self._enable(index, call)

    def _enable(self, index: int, call: Call) -> None:
        """Leaves out a kernel whose grid has no blocks, which the driver would refuse."""
        empty = isinstance(call, KernelCall) and 0 in call.grid
        if empty != (index in self._left_out):
            result = self._driver.cu.cuGraphNodeSetEnabled(self._exec, self._nodes[index], int(not empty))
            self._check(result, "leaving out a kernel that has no blocks")
            self._left_out ^= {index}

    def launch(self, stream: int) -> None:
        self._check(self._driver.cu.cuGraphLaunch(self._exec, stream), "launching the graph")

    def close(self) -> None:
        if self._exec is not None:
            self._driver.cu.cuGraphExecDestroy(self._exec)
        self._driver.cu.cuGraphDestroy(self._graph)
        self._exec, self._nodes = None, []
