"""Schedules: what a script may know (`kernel_info`), what it says (`verbs`, `attributes`), which script is whose
(`registry`), and how it is applied and blamed (`apply`, `places`, `errors`).

A script's file says `from mlirc.schedule import register, verbs`. Names are found when they are asked for: the passes,
which read a schedule's attributes, import this package without the dialects that verbs need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlirc.schedule.kernel_info import KernelInfo as KernelInfo
    from mlirc.schedule.registry import Schedules as Schedules
    from mlirc.schedule.registry import register as register

_HOMES = {"KernelInfo": "kernel_info", "Schedules": "registry", "register": "registry"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mlirc.schedule' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"mlirc.schedule.{_HOMES[name]}"), name)
