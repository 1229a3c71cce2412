"""The state of a loaded model: the tensors that its calls change and that last from one call to the next, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mlirc.errors import MlircError
from mlirc.runtime.arrays import View, check, view
from mlirc.runtime.plan import Plan, TensorSpec
from mlirc.runtime.resources import upload
from mlirc.runtime.weights import WeightFile
from mlirc.turns import Turn, model_turn


class State(Mapping[str, Any]):
    """`model.state`: a read-only mapping from a state's name to its tensor, whose items can be assigned.

        model.state["k"]               # as it is now: np.asarray(...), or, on a GPU, torch.from_dlpack(...)
        model.state["k"] = tensor      # any tensor of its dtype and shape; copied
        model.state.reset()            # all to what they were when the model was loaded
        model.state.reset("k", "v")

    `read` gives a state's tensor, `write` replaces its contents by those of a checked view or array; both in the
    model's `turn`.
    """

    def __init__(
        self,
        specs: list[TensorSpec],
        read: Callable[[str], Any],
        write: Callable[[str, View | np.ndarray], None],
        turn: Turn,
    ):
        self._specs = {spec.name: spec for spec in specs if spec.kind == "state"}
        self._read, self._write, self._turn = read, write, turn
        self._initial: dict[str, View | np.ndarray] = {}

    def remember(self, name: str, initial: View | np.ndarray) -> None:
        """What `reset` gives a state."""
        self._initial[name] = initial

    def initial(self, name: str) -> View | np.ndarray:
        """What `reset` gives a state."""
        return self._initial[name]

    @model_turn
    def __getitem__(self, name: str) -> Any:
        self._known(name)
        return self._read(name)

    @model_turn
    def __setitem__(self, name: str, tensor: Any) -> None:
        spec = self._known(name)
        seen = view(tensor, name)
        check(seen, spec)
        self._write(name, seen)

    @model_turn
    def reset(self, *names: str) -> None:
        """Gives states back the values that they had when the model was loaded: those named, or all."""
        for name in names:
            self._known(name)
        for name in names or self._specs:
            initial = self._initial[name]
            if isinstance(initial, View) and isinstance(initial.owner, WeightFile):
                initial.owner.require_same()
            self._write(name, initial)

    @model_turn
    def snapshot(self) -> dict[str, np.ndarray]:
        """All states as they are now, as arrays of their own."""
        return {name: np.array(self[name]) for name in self}

    @model_turn
    def restore(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Makes the states what a snapshot says."""
        for name, array in snapshot.items():
            self[name] = array

    def _known(self, name: str) -> TensorSpec:
        if name not in self._specs:
            raise MlircError(f"no state is called '{name}': the model has {', '.join(self._specs) or 'none'}")
        return self._specs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}: {spec}' for name, spec in self._specs.items())})"


def device_state(plan: Plan, driver: Any, tensors: Mapping[str, Any], turn: Turn) -> State:
    """The state of a model whose state tensors (`DeviceTensor`s, maybe not made yet) lie on a GPU. It holds nothing of
    the model, which goes away with its last reference."""

    def write(name: str, source: View | np.ndarray) -> None:
        seen = source if isinstance(source, View) else view(source, name)
        with driver.current():
            driver.synchronize()  # what is under way still uses the old values
            upload(driver, tensors[name].pointer, seen, 0)
            driver.synchronize()

    return State(plan.weights, tensors.__getitem__, write, turn)
