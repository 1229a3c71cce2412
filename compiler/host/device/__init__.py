"""The host device: executes the `gpu` level of a kernel on the CPU, all threads of many blocks at a time, and reports
what a GPU would leave to luck."""

from mlirc.host.device.compiled import HostModel
from mlirc.host.device.launch import DeviceKernel, run_kernel
from mlirc.host.device.model import DeviceModel
from mlirc.host.device.report import Finding, Report

__all__ = ["DeviceKernel", "DeviceModel", "Finding", "HostModel", "Report", "run_kernel"]
