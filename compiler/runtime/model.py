"""A compiled model on a GPU: binds weights and inputs, runs the plan."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from mlirc.errors import MlircError
from mlirc.runtime.arrays import (
    NUMPY_DTYPES,
    DeviceTensor,
    View,
    check,
    current_stream,
    empty_like,
    stream_handle,
    view,
)
from mlirc.runtime.calls import arguments_of, result_of
from mlirc.runtime.cuda import Call, CopyCall, Driver, KernelCall, check_target
from mlirc.runtime.fitting import cut
from mlirc.runtime.plan import POINTER_ALIGNMENT, CopyStep, Dim3, KernelLaunch, Plan, Ref, TensorSpec, begins_early
from mlirc.runtime.random_state import RandomState
from mlirc.runtime.repeats import PlanStep, references
from mlirc.runtime.resources import Resources, upload
from mlirc.runtime.runs import Landing, Run, Runs
from mlirc.runtime.scalars import grid_of, scalar_array
from mlirc.runtime.setup_weights import done_with, steps_of_a_run
from mlirc.runtime.sized_copies import actual, check_sized, dims_of, put_input, solve, take_output
from mlirc.runtime.state import State, device_state
from mlirc.runtime.weights import WeightFile
from mlirc.runtime.written_inputs import Held, check_written, settle
from mlirc.turns import LoadedModel, Turn, model_turn


def _view_of(tensor: DeviceTensor) -> View:
    return View(tensor.pointer, tensor.device_id, tensor.dtype, tensor.shape, True, tensor, "other")


class Shared(NamedTuple):
    """A weight or state that other models may share: where it lies, and whether it may change between runs, not by a
    run of these models."""

    spec: TensorSpec
    pointer: int
    changing: bool


def _padded(size: int) -> int:
    """Bytes to the next place where a tensor may begin."""
    return -(-size // POINTER_ALIGNMENT) * POINTER_ALIGNMENT


def _is_frozen(array: np.ndarray) -> bool:
    """Whether nobody can write an array: not through it, nor through one that it is a view of."""
    return not array.flags.writeable and array.base is None


class CompiledModel(LoadedModel):
    """A model on one GPU, ready to run. Calls enqueue the whole plan as one CUDA graph; where the addresses of inputs
    or outputs change, only the nodes that use them are updated. Calls share one arena: those of several threads are
    made in turn, and the GPU does those on several streams one after the other.

    What the model keeps from call to call is `state`, by name. `rebuild` makes of a call's outputs what the module
    returns, in its own classes, where those are there (`mlirc.compile`).

    Make one with `load` or `load_text`; use it as a context manager, or call `close`, to free its memory early.
    """

    rebuild: Callable[[Sequence[Any]], Any] | None = None

    def __init__(
        self,
        ptx: str,
        plan: Plan,
        weights: Mapping[str, Any],
        device: int,
        graph: bool,
        driver: Any,
        where: str,
        share: CompiledModel | None = None,
        frozen: bool = False,
    ):
        self.plan, self.device, self._use_graph, self._where = plan, device, graph, where
        self._frozen = frozen
        self._turn = Turn(where, share._turn.lock if share else None)
        self._random = RandomState(plan.draws)
        if share is not None and share.device != device:
            raise MlircError(f"{where}: is to share what lies on GPU {share.device}, and is loaded onto GPU {device}")
        driver = driver or Driver(device)  # one for each: with it a model's hold of the context ends
        self._driver: Any = driver
        self._shared = share
        self._sharers: weakref.WeakSet[CompiledModel] = weakref.WeakSet()
        self._held = Resources(driver)
        self._close = weakref.finalize(self, self._held.close)
        try:
            check_target(plan.target, driver.cc, driver.name)
            with driver.current():
                self._load(ptx, weights)
        except BaseException:
            self._close()
            raise
        if share is not None:
            share._sharers.add(self)

    # Setting up

    def _load(self, ptx: str, weights: Mapping[str, Any]) -> None:
        plan, driver = self.plan, self._driver
        self._names = {i: spec.name for i, spec in enumerate(plan.inputs)}
        self._scalars = {
            i: np.zeros((), NUMPY_DTYPES[s.dtype]) for i, s in enumerate(plan.inputs) if s.kind == "scalar"
        }
        self._bases: dict[str, list[int]] = {
            "input": [0] * len(plan.inputs),
            "output": [0] * len(plan.outputs),
            "arena": [self._held.alloc(plan.arena_size) if plan.arena_size else 0],
        }
        if plan.draws:
            self._bases["input"][-1] = self._held.alloc(plan.inputs[-1].nbytes)
        self._bases["weight"] = self._bind_weights(weights)
        self._owned: list[Held] = [("a weight", w, False) for w in self._weights]
        self._owned += [(f"state '{n}'", _view_of(t), True) for n, t in self._states.items()]
        module = driver.load(ptx, self._where)
        self._held.modules.append(module)
        most: dict[str, tuple[int, int]] = {}  # of shared memory, and of a cluster's blocks
        for launch in plan.launches:
            smem, blocks = most.get(launch.symbol, (0, 1))
            most[launch.symbol] = max(smem, launch.smem), max(blocks, prod(launch.cluster or ()))
        functions = {symbol: driver.function(module, symbol, *sizes) for symbol, sizes in most.items()}
        self._steps = steps_of_a_run(plan, self._changing)
        if len(self._steps) < len(plan.steps):
            for call in self._make_calls(0, plan.steps[: plan.setup], functions):
                driver.launch(call, 0)
        first = len(plan.steps) - len(self._steps)
        self._calls = self._make_calls(first, self._steps, functions)
        waits = [plan.waits(first + n) for n in range(len(self._steps))]
        self._waits = [tuple(n - first for n in numbers if n >= first) for numbers in waits]
        self._users: dict[tuple[str, int], list[int]] = {}
        by_address: set[int] = set()  # inputs that some step takes so
        for i, step in enumerate(self._steps):
            values = {step.args[n] for n in step.values} if isinstance(step, KernelLaunch) else set()
            used = {(ref.space, ref.index) for ref in references(step) if ref.space in ("input", "output")}
            by_address |= {ref.index for ref in references(step) if ref.space == "input" and ref not in values}
            if isinstance(step, KernelLaunch):
                used |= {("input", extent.scalar) for extent in step.extents.values()}
            for place in used:
                self._users.setdefault(place, []).append(i)
        self._by_value = {i for i, s in enumerate(plan.inputs) if s.kind == "scalar" and i not in by_address}
        self._stale: set[int] = set()
        self._staging: dict[int, int] = {}
        self._writes = bool(plan.written)
        self._room = sum(_padded(spec.nbytes) for spec in plan.given)  # for all inputs, one behind the other
        self._fed = 0  # such a place, of inputs that runs bring along
        self._static: list[DeviceTensor] | None = None
        self._in_use: list[Any] = []
        self._sizes: dict[str, int] = {}  # of the last call or `bind`
        self._bound = not plan.inputs
        if self._shared is None:
            self._own_stream = driver.stream()
            self._held.streams.append(self._own_stream)
        else:  # models that share states run one after the other
            self._own_stream = self._shared._own_stream
        self._last_stream: int | None = None  # of the last call
        self._runs = Runs(self._held)
        driver.synchronize()
        self._free_weights(done_with(plan, self._steps))

    def _bind_weights(self, weights: Mapping[str, Any]) -> list[int]:
        """The address of every weight: its own where it is dense, aligned and on the device, else of a copy. One after
        the other, so that weights made on demand are never all on the host."""
        pointers: list[int] = []
        self._weights: list[View] = []  # keeps memory that is bound in place alive
        self._changing: set[int] = set()  # numbers of weights that may change between runs
        self._places: dict[str, Shared] = {}  # what others may share
        theirs = self._shared._places if self._shared else {}
        self._states: dict[str, DeviceTensor] = {}
        self.state: State = device_state(self.plan, self._driver, self._states, self._turn)
        for number, spec in enumerate(self.plan.weights):
            if spec.name in theirs and spec.kind != "constant":
                pointers.append(self._share(number, spec, theirs[spec.name]))
                continue
            if spec.name not in weights:
                raise MlircError(f"{self._where}: {spec.kind} '{spec.name}' ({spec}) is missing from the given weights")
            given = weights[spec.name]
            if hasattr(given, "is_contiguous") and not given.is_contiguous():
                given = given.contiguous()
            seen = given if isinstance(given, View) else view(given, spec.name)
            check(seen, spec)
            own = spec.kind == "state"
            if seen.device == self.device and seen.pointer % POINTER_ALIGNMENT == 0 and not own:
                self._weights.append(seen)
                pointers.append(seen.pointer)
                if spec.kind == "weight" and not self._frozen:
                    self._changing.add(number)
            else:
                pointers.append(self._held.alloc(seen.nbytes))
                upload(self._driver, pointers[-1], seen, 0)
                self._driver.synchronize(0)
                if isinstance(seen.owner, WeightFile):
                    seen.owner.require_same()
            if own:
                tensor = self._device_tensor(spec, pointers[-1], self._held)
                self._states[spec.name] = tensor
                # A file keeps its values, and so does an array that is read-only; what else was given may change.
                stays = isinstance(seen.owner, WeightFile) or (isinstance(given, np.ndarray) and _is_frozen(given))
                self.state.remember(spec.name, seen if stays else tensor.numpy())
            if spec.kind != "constant":
                self._places[spec.name] = Shared(spec, pointers[-1], number in self._changing)
        return pointers

    def _free_weights(self, numbers: set[int]) -> None:
        """Frees the model's own copies of weights that no run reads. Another model that shares has copies of its own
        of them."""
        for number in numbers:
            pointer = self._bases["weight"][number]
            if pointer in self._held.pointers:
                self._held.free(pointer)
                self._bases["weight"][number] = 0
                self._places.pop(self.plan.weights[number].name, None)

    def _share(self, number: int, spec: TensorSpec, place: Shared) -> int:
        """The address of a weight or state of the model that this one shares with, which is this one's, too."""
        other, pointer = place.spec, place.pointer
        if (spec.dtype, spec.shape, spec.kind) != (other.dtype, other.shape, other.kind):
            raise MlircError(
                f"{self._where}: {spec.kind} '{spec.name}' ({spec}) is {other.kind} {other} in the model to share with"
            )
        self._places[spec.name] = Shared(spec, pointer, place.changing)
        if place.changing:
            self._changing.add(number)
        shared = self._shared
        if shared is not None and spec.kind == "state":
            self._states[spec.name] = shared._states[spec.name]
            self.state.remember(spec.name, shared.state.initial(spec.name))
        return pointer

    def _address(self, ref: Ref) -> int:
        return self._bases[ref.space][ref.index] + ref.offset

    def _make_calls(self, first: int, steps: Sequence[PlanStep], functions: Mapping[str, Any]) -> list[Call]:
        """The calls of the plan's steps from number `first` on."""
        calls = []
        for number, step in enumerate(steps):
            in_order = number and self.plan.waits(first + number) == (first + number - 1,)
            early = begins_early(step, steps[number - 1] if in_order else None)
            calls.append(self._make_call(step, functions, early))
        return calls

    def _make_call(self, step: KernelLaunch | CopyStep, functions: Mapping[str, Any], early: bool) -> Call:
        if isinstance(step, CopyStep):
            return CopyCall(self._address(step.target), self._address(step.source), step.source.size)
        function = functions[step.symbol]
        call = KernelCall(function, step.symbol, step.grid, step.block, step.smem, [], step.cluster, step.maps, early)
        call.cooperative = step.cooperative
        self._bind_call(step, call)
        return call

    def _bind_call(self, step: KernelLaunch, call: KernelCall) -> None:
        """Gives a call the current addresses, scalars and grid."""
        call.pointers = [self._address(ref) for ref in step.args]
        call.tables = {n: [self._address(ref) for ref in table] for n, table in step.tables.items()}
        call.values = {n: self._scalars[step.args[n].index].tobytes() for n in step.values}
        call.grid = self._grid(step)

    def _grid(self, step: KernelLaunch) -> Dim3:
        return grid_of(step, self._scalars, self._names) if step.extents else step.grid

    # Binding tensors

    def _resolve(self, tensors: tuple, named: Mapping[str, Any]) -> list[View]:
        """The inputs in the plan's order, checked against it."""
        specs = self.plan.asked
        self._given = arguments_of(self.plan, tensors, named)
        numbers = [s.kind == "scalar" for s in specs]
        given = [scalar_array(t, s) if n else t for t, s, n in zip(self._given, specs, numbers, strict=True)]
        seen = [view(t, spec.name) for t, spec in zip(given, specs, strict=True)]
        for v, spec in zip(seen, specs, strict=True):
            check(v, spec) if dims_of(self.plan, spec) is None else check_sized(v, spec)
            if v.device not in (None, self.device):
                raise MlircError(f"input '{spec.name}': lies on GPU {v.device}, but the model on GPU {self.device}")
        self._sizes = solve(self.plan, seen, specs)
        for i, spec in enumerate(self.plan.given):  # in their places among the others
            if spec.name in self._sizes:
                number = np.array(self._sizes[spec.name], np.int64)
                seen.insert(i, view(number, spec.name))
                self._given.insert(i, number)
        specs = self.plan.given
        if self._writes:
            check_written(specs, seen, self._given, self._owned)
        return seen

    def _set_base(self, space: str, index: int, pointer: int) -> None:
        if self._bases[space][index] == pointer:
            return
        self._bases[space][index] = pointer
        for number in self._users.get((space, index), ()):
            self._stale.add(number)

    def _refresh(self) -> None:
        """Brings the calls, and the graph's nodes, up to the current addresses."""
        for number in sorted(self._stale):
            step, call = self._steps[number], self._calls[number]
            if isinstance(call, CopyCall) and isinstance(step, CopyStep):
                call.target, call.source = self._address(step.target), self._address(step.source)
            elif isinstance(call, KernelCall) and isinstance(step, KernelLaunch):
                self._bind_call(step, call)
            if self._held.graph is not None:
                self._held.graph.update(number, call)
        self._stale.clear()

    def _bind_inputs(self, seen: list[View], stream: int, landing: Landing | None = None) -> None:
        """Binds inputs; those on the host by a copy on the stream: of all at once, out of a run's page-locked memory,
        where a landing is given."""
        filled = 0  # bytes of the landing
        scalars = {i: v.owner for i, v in enumerate(seen) if self.plan.inputs[i].kind == "scalar"}
        self._check_grids(scalars)
        for index, array in scalars.items():
            if self._scalars[index].tobytes() != array.tobytes():
                self._stale.update(self._users.get(("input", index), ()))
        self._scalars.update(scalars)
        for index, v in enumerate(seen):
            if index in self._by_value:
                continue
            pointer, spec = v.pointer, self.plan.inputs[index]
            dims = dims_of(self.plan, spec)
            if dims and v.shape != spec.shape:
                if index not in self._staging:
                    self._staging[index] = self._held.alloc(spec.nbytes)
                pointer = self._staging[index]
                put_input(self._driver, pointer, v, spec, dims, self._sizes, stream)
            elif v.device is None and landing is not None:
                self._fed = self._fed or self._held.alloc(self._room)
                ctypes.memmove(landing.inputs + filled, pointer, v.nbytes)
                pointer = self._fed + filled
                filled += _padded(v.nbytes)
            elif v.device is None or pointer % POINTER_ALIGNMENT:
                if index not in self._staging:
                    self._staging[index] = self._held.alloc(v.nbytes)
                pointer = self._staging[index]
                upload(self._driver, pointer, v, stream)
            self._set_base("input", index, pointer)
        if landing is not None and filled:
            self._driver.copy_in(self._fed, landing.inputs, filled, stream)
        if self.plan.draws:
            state = self._random.advance()
            self._driver.copy_in(self._bases["input"][-1], state.ctypes.data, state.nbytes, stream)
        self._in_use = seen
        self._bound = True

    def _check_grids(self, scalars: Mapping[int, np.ndarray]) -> None:
        """Raises MlircError for scalars that no grid is for, before anything is bound."""
        for number in {n for index in scalars for n in self._users.get(("input", index), ())}:
            step = self._steps[number]
            if isinstance(step, KernelLaunch) and step.extents:
                grid_of(step, scalars, self._names)

    def _device_tensor(self, spec: TensorSpec, pointer: int, owner: Any) -> DeviceTensor:
        driver = self._driver

        def synchronize() -> None:
            with driver.current():
                driver.synchronize()

        def download(host: int, source: int, size: int) -> None:
            with driver.current():
                driver.copy_out(host, source, size, 0)
                driver.synchronize(0)

        return DeviceTensor(pointer, spec, self.device, synchronize, download, owner)

    def _fresh_tensor(self, spec: TensorSpec) -> DeviceTensor:
        """A tensor in memory of its own, which is freed with the tensor."""
        held = self._held
        tensor = self._device_tensor(spec, held.lend(spec.nbytes), held)
        weakref.finalize(tensor, held.take_back, tensor.pointer).atexit = False
        return tensor

    # Running

    @property
    @model_turn
    def outputs(self) -> list[DeviceTensor]:
        """The static output buffers that `launch` writes, one per output of the plan, at the bound where sizes are
        symbolic; gone after `close`."""
        if self._static is None:
            with self._driver.current():
                self._static = [
                    self._device_tensor(spec, self._held.alloc(spec.nbytes), None) for spec in self.plan.outputs
                ]
        return self._static

    @model_turn
    def manual_seed(self, seed: int, offset: int = 0) -> None:
        """Starts the sequence of random numbers of a seed, as `torch.manual_seed` does, for the calls from here on;
        `offset` words behind its beginning."""
        self._random.manual_seed(seed, offset)

    @model_turn
    def bind(self, *tensors: Any, **named: Any) -> None:
        """Sets the inputs for `launch`. GPU tensors are used in place on every launch; host tensors are copied now. A
        model that draws random numbers draws the same ones in every launch until the next `bind`."""
        with self._driver.current():
            self._bind_inputs(self._resolve(tensors, named), self._own_stream)
            self._driver.synchronize(self._own_stream)

    @model_turn
    def launch(self, stream: Any = 0) -> None:
        """Enqueues the plan on a stream (a handle, or a torch or CuPy stream) with the inputs of the last `bind` or
        call, into the static `outputs`; does not wait. For benchmarks."""
        if not self._bound:
            raise MlircError("launch: the inputs are not bound yet: call bind(...) first")
        with self._driver.current():
            self._launch(stream_handle(stream))

    def _launch(self, stream: int) -> None:
        for index, tensor in enumerate(self.outputs):
            self._set_base("output", index, tensor.pointer)
        self._enqueue(stream)

    @model_turn
    def start(self, *tensors: Any, **named: Any) -> Run:
        """As `launch`, on the model's own stream, which is that of the models that it shares with: runs follow each
        other as they were started. The outputs are copied to the host behind it; `Run.result` waits for them, and gives
        them as a call does.

        Where inputs are given, they are bound first, without waiting: those on the host may be used again at once;
        those on a GPU have to be there by now, and stay as they are until the run's end. Raises MlircError for inputs
        as a call does, and for one on the host that the model changes."""
        given = bool(tensors or named)
        if not given and not self._bound:
            raise MlircError("start: the inputs are not bound yet: give them, or call bind(...) first")
        with self._driver.current():
            seen = self._resolve(tensors, named) if given else self._in_use
            if given:
                pairs = zip(self.plan.given, seen, strict=True)
                for name in [s.name for s, v in pairs if s.kind == "inout" and v.device is None]:
                    raise MlircError(f"start: the model changes input '{name}', which lies on the host: call the model")
            landing = self._runs.next(self._room, self.outputs)
            if given:
                self._bind_inputs(seen, self._own_stream, landing)
            self._launch(self._own_stream)
            return self._runs.follow(self._own_stream, seen, partial(self._cut, dict(self._sizes)))

    def _cut(self, sizes: Mapping[str, int], arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Outputs at the bound as a call with these sizes has them."""
        return [cut(a, dims_of(self.plan, s), sizes) for a, s in zip(arrays, self.plan.outputs, strict=True)]

    @model_turn
    def write_state(self, name: str, array: np.ndarray) -> None:
        """Gives a state a new value behind the runs that were started and in front of those that will be; does not
        wait for them. The array may be used again at once."""
        tensor = self.state[name]
        seen = view(array, name)
        check(seen, tensor.spec)
        with self._driver.current():
            upload(self._driver, tensor.pointer, seen, self._own_stream)

    @property
    def steps(self) -> list[KernelLaunch | CopyStep]:
        """The plan's steps that every run goes through."""
        return list(self._steps)

    @model_turn
    def launch_step(self, number: int, stream: Any = 0) -> None:
        """Enqueues one step of `steps` alone, on the buffers that the last `launch` used; does not wait. For timing a
        kernel by itself."""
        with self._driver.current():
            self._refresh()
            call = self._calls[number]
            if isinstance(call, KernelCall):  # behind what is not known here
                call = replace(call, dependent=False)
            self._driver.launch(call, stream_handle(stream))

    @model_turn
    def synchronize(self) -> None:
        """Waits for everything that the GPU was given to do."""
        with self._driver.current():
            self._driver.synchronize()

    def _enqueue(self, stream: int) -> None:
        self._refresh()
        if not self._calls:
            return
        if not self._use_graph:
            for call in self._calls:
                self._driver.launch(call, stream)
            return
        if self._held.graph is None:
            self._held.graph = self._driver.graph(self._calls, self._waits)
        self._held.graph.launch(stream)

    def __call__(self, *tensors: Any, stream: Any = None, **named: Any) -> Any:
        """Runs the model: inputs as the module takes them, or tensor by tensor, by position in the plan's order or by
        name. The result is as the module has it (`plan.structure`), else one output as it is, several as a tuple.

        Outputs are of the library of the first input that lies on the GPU, or else of the first input: torch (or CuPy)
        tensors, without waiting, on that library's current stream; NumPy arrays, waiting; `DeviceTensor`s for others.
        `stream` runs it on a stream of the caller's.
        """
        return result_of(self.plan, self.flat(*tensors, stream=stream, **named), self.rebuild)

    @model_turn
    def flat(self, *tensors: Any, stream: Any = None, **named: Any) -> list[Any]:
        """Runs the model as a call does; returns the plan's outputs, complex ones as pairs of real numbers."""
        seen = self._resolve(tensors, named)
        tensors_seen = [v for v, s in zip(seen, self.plan.given, strict=True) if s.kind != "scalar"]
        like = next((v for v in tensors_seen if v.device is not None), next(iter(tensors_seen), None))
        with self._driver.current():
            handle = self._pick_stream(like, stream)
            self._follow(handle)
            self._bind_inputs(seen, handle)
            results, downloads = self._fresh_outputs(like)
            asks = like is not None and like.kind in ("torch", "cupy")
            if like is not None and like.device is not None and not asks:
                self._driver.synchronize()  # nothing says which stream makes the inputs
            self._enqueue(handle)
            for pointer, made, spec in downloads:
                if dims := dims_of(self.plan, spec):
                    take_output(self._driver, pointer, made, dims, self._sizes, handle)
                else:
                    self._driver.copy_out(made.pointer, pointer, made.nbytes, handle)
            self._return_inputs(seen, handle)
            # Torch and CuPy order later work, and the reuse of memory, by the stream; others are not told of it, and
            # host memory may change as soon as this returns.
            if not asks or any(v.device is None for v in tensors_seen):
                self._driver.synchronize(handle)
        for spec, v, tensor in zip(self.plan.given, seen, self._given, strict=True):
            if spec.kind == "inout":
                settle(v, tensor)
        return results

    def _follow(self, stream: int) -> None:
        """Waits for calls on another stream, which use the same arena."""
        if self._last_stream not in (None, stream) and not self._driver.is_capturing(stream):
            self._driver.synchronize()
        self._last_stream = stream

    def _return_inputs(self, seen: list[View], stream: int) -> None:
        """Copies inputs that were changed in a copy of them back to where they lie."""
        for index, (spec, v) in enumerate(zip(self.plan.given, seen, strict=True)):
            place = self._bases["input"][index]
            if spec.kind != "inout" or place == v.pointer or not v.nbytes:
                continue
            if v.device is None:
                self._driver.copy_out(v.pointer, place, v.nbytes, stream)
            else:
                self._driver.copy(v.pointer, place, v.nbytes, stream)

    def _pick_stream(self, like: View | None, stream: Any) -> int:
        if stream is not None:
            return stream_handle(stream)
        current = current_stream(like, self.device) if like is not None else None
        if current is not None:
            return current
        # Another library's GPU tensors: the legacy default stream waits for its (blocking) streams.
        return 0 if like is not None and like.device is not None else self._own_stream

    def _fresh_outputs(self, like: View | None) -> tuple[list[Any], list[tuple[int, View, TensorSpec]]]:
        """New output tensors, bound; and those to copy afterwards: (device address, where to, the plan's output)."""
        results: list[Any] = []
        downloads: list[tuple[int, View, TensorSpec]] = []
        host = View(0, None, "i8", (), True, None, "numpy")
        for index, planned in enumerate(self.plan.outputs):
            spec = actual(self.plan, planned, self._sizes)
            made = empty_like(like or host, spec, self.device)
            if made is None:
                tensor = self._fresh_tensor(spec)
                made = View(tensor.pointer, self.device, spec.dtype, spec.shape, True, (tensor,), "other")
            results.append(made.owner[0] if isinstance(made.owner, tuple) else made.owner)
            if made.device is not None and spec.shape == planned.shape:
                self._set_base("output", index, made.pointer)
                continue
            pointer = self.outputs[index].pointer
            self._set_base("output", index, pointer)
            if made.nbytes:
                downloads.append((pointer, made, planned))
        return results, downloads

    # Ending

    def close(self) -> None:
        """Frees the device memory and unloads the kernels; the model cannot run afterwards. Raises MlircError where
        other models share its weights or states: close those first."""
        with self._turn.lock:
            if len(self._sharers):
                raise MlircError(
                    f"{self._where}: {len(self._sharers)} other models share its memory: close those first"
                )
            if self._shared is not None:
                self._shared._sharers.discard(self)
            self._turn.closed = True
            self._close()

    def __enter__(self) -> CompiledModel:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"CompiledModel({self.plan.signature()} on cuda:{self.device})"
