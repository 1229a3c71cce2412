"""The host device: executes the `gpu` level of a kernel on the CPU, all threads of many blocks at a time, and reports
what a GPU would leave to luck."""

from mlirc.device.compiled import HostModel
from mlirc.device.launch import DeviceKernel, run_kernel
from mlirc.device.model import DeviceModel
from mlirc.device.report import Finding, Report

__all__ = ["DeviceKernel", "DeviceModel", "Finding", "HostModel", "Report", "run_kernel"]
