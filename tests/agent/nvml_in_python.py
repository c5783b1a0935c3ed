"""The fake NVML without a compiler: what pynvml calls by name, in the words of tests/cluster/nvml/fake_nvml.c.

It takes the place of the loaded library in this process alone; samplers that are started need the one in C.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

OK, INVALID, UNSUPPORTED, NOT_FOUND, TOO_SMALL, TIMEOUT, LOST = 0, 2, 3, 6, 7, 10, 15
UINT, ULONG_LONG = 1, 3  # nvmlValueType_t
_MIB = 2**20
_ALL_LINKS = 0xFFFFFFFF  # nvml.h: a scope of UINT_MAX is the sum of all links
Word = Any  # whatever ctypes passes to a function of the library
# Function -> the value of a whole GPU, or None where it has none
_NUMBERS: dict[str, Callable[[Device], int | None]] = {
    "nvmlDeviceGetMinorNumber": lambda d: d.integer("minor"),
    "nvmlDeviceGetNumGpuCores": lambda d: d.integer("cores"),
    "nvmlDeviceGetPowerUsage": lambda d: d.power_mw(time.monotonic()),
    "nvmlDeviceGetEnforcedPowerLimit": lambda d: d.integer("power_limit_w") * 1000,
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda _: 700_000,
    "nvmlDeviceGetComputeMode": lambda d: d.integer("compute_mode"),
    "nvmlDeviceGetPersistenceMode": lambda d: d.integer("persistence"),
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda _: 5,
    "nvmlDeviceGetMaxPcieLinkWidth": lambda _: 16,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda d: d.reasons(),
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda d: d.reasons(),
}
_CLOCKS = {  # SM, memory
    "nvmlDeviceGetClockInfo": (1755, 2619),
    "nvmlDeviceGetMaxClockInfo": (1980, 2619),
    "nvmlDeviceGetApplicationsClock": (1830, 2619),
}
_DEFAULTS: dict[str, str] = {
    **dict.fromkeys(("energy", "average", "instant", "counters", "gpm", "util", "persistence", "ecc"), "1"),
    "name": "NVIDIA H100 80GB HBM3",
    "cc": "9.0",
    "cores": "16896",
    "power_limit_w": "700",
    "mean_w": "250",
    "swing_w": "50",
    "period_s": "4",
    "memory_mib": "81559",
    "used_mib": "20480",
    "reserved_mib": "500",
    "lost_after_s": "-1",
    "throttle_share": "0.25",
    "tensor_percent": "37",
    "dram_percent": "52",
    "nvlinks": "18",
    "sms": "16",
}


@dataclass(slots=True)
class Device:
    """A GPU, or an instance of one."""

    number: int
    words: dict[str, str]
    board: Device | None = None
    instances: list[Device] = field(default_factory=list)

    def real(self, key: str) -> float:
        return float(self.words.get(key, "0"))

    def integer(self, key: str) -> int:
        return int(self.real(key))

    def reasons(self) -> int | None:
        return None if self.real("reasons") < 0 else self.integer("reasons")

    def power_mw(self, at_s: float) -> int:
        wave = math.sin(2 * math.pi * at_s / self.real("period_s"))
        return round(1000 * (self.real("mean_w") + self.real("swing_w") * wave))

    def energy_j(self, at_s: float) -> float:
        wave = math.cos(2 * math.pi * at_s / self.real("period_s"))
        return self.real("mean_w") * at_s - self.real("swing_w") * self.real("period_s") / (2 * math.pi) * wave

    def field_value(self, number: int, scope: int, at_s: float) -> tuple[int, int] | None:
        """Return type and value of a field; None where the GPU has none."""
        links = self.integer("nvlinks") if scope == _ALL_LINKS else 1
        known = {
            3: ("ecc", ULONG_LONG, self.integer("ecc_corrected")),
            4: ("ecc", ULONG_LONG, self.integer("ecc_uncorrected")),
            74: ("counters", ULONG_LONG, int(1e9 * self.real("throttle_share") * at_s)),
            **dict.fromkeys((75, 76, 269, 270, 271), ("counters", ULONG_LONG, 0)),
            83: ("energy", ULONG_LONG, int(1000 * self.energy_j(at_s))),
            185: ("average", UINT, int(1000 * (self.energy_j(at_s) - self.energy_j(at_s - 1)))),
            186: ("instant", UINT, self.power_mw(at_s)),
            **dict.fromkeys((138, 139), ("nvlinks", ULONG_LONG, int(1024 * at_s) * links)),
            **dict.fromkeys((197, 198), ("persistence", ULONG_LONG, int(_MIB * at_s))),
        }
        switch, kind, value = known[number]
        return (kind, value) if self.integer(switch) else None


class FakeLibrary:
    """Stands where pynvml keeps the library: a function for each name, which takes what ctypes would pass."""

    def __init__(self, config: str) -> None:
        self.config = config
        self.boards: list[Device] = []
        self.devices: list[Device] = []
        self.calls: Counter[str] = Counter()
        self.system = {"driver": "570.86.15", "cuda": "12080"}
        self.began_s = 0.0
        self.sampled: Device | None = None

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        own = _FUNCTIONS.get(name)
        if own is None and name not in _NUMBERS and name not in _CLOCKS:
            raise AttributeError(name)  # pynvml's Function Not Found

        def call(*words: Word) -> int:
            self.calls[name] += 1
            time.sleep(self._injected("FAKE_NVML_SLOW", name))
            if code := int(self._injected("FAKE_NVML_FAIL", name)):
                return code
            device = self.device(words[0]) if words else None
            if device is not None and self._is_lost(device):
                return LOST
            if own is not None:
                return own(self, *((device, *words[1:]) if device is not None else words)) or OK
            return _tell_number(name, device, words)

        return call

    def _is_lost(self, device: Device) -> bool:
        lost_s = (device.board or device).real("lost_after_s")
        return lost_s >= 0 and time.monotonic() - self.began_s >= lost_s

    def _injected(self, variable: str, name: str) -> float:
        for part in filter(None, os.environ.get(variable, "").split(";")):
            function, _, rest = part.partition("=")
            value, _, after = rest.partition(",after=")
            if function == name and self.calls[name] > int(after or 0):
                return float(value)
        return 0.0

    def device(self, word: Word) -> Device | None:
        if type(word).__name__ != "LP_struct_c_nvmlDevice_t":
            return None
        address = ctypes.cast(word, ctypes.c_void_p).value
        return self.devices[address - 1] if address else None

    def start(self) -> None:
        self.began_s = time.monotonic()
        self.boards, self.devices = [], []
        at: Device | None = None
        for line in self.config.splitlines():
            key, _, value = line.strip().partition(" ")
            if key in self.system:
                self.system[key] = value
            elif key == "gpu":
                number = len(self.boards)
                words = {"uuid": f"GPU-{number}", "pci": f"00000000:{0x1A + number:02X}:00.0", "minor": str(number)}
                at = Device(number, {**_DEFAULTS, **words})
                self.boards.append(at)
                self.devices.append(at)
            elif key == "mig":
                board = self.boards[-1]
                at = replace(board, words=dict(board.words), board=board, instances=[])
                board.instances.append(at)
                self.devices.append(at)
            elif at is not None:
                at.words[key] = value


def _tell_number(name: str, device: Device | None, words: Sequence[Word]) -> int:
    assert device is not None
    value = _CLOCKS[name][words[1].value == 2] if name in _CLOCKS else _NUMBERS[name](device)
    if device.board is not None or value is None:
        return UNSUPPORTED
    words[-1]._obj.value = value
    return OK


def _point(target: Word, library: FakeLibrary, device: Device) -> None:
    ctypes.cast(target, ctypes.POINTER(ctypes.c_void_p))[0] = ctypes.c_void_p(
        next(number for number, known in enumerate(library.devices, start=1) if known is device)
    )


def _by_index(library: FakeLibrary, index: Word, target: Word) -> int:
    if _value(index) >= len(library.boards):
        return INVALID
    device = library.boards[_value(index)]
    _point(target, library, device)
    return LOST if device.real("lost_after_s") == 0 else OK


def _by_uuid(library: FakeLibrary, uuid: Word, target: Word) -> int:
    wanted = uuid.value if hasattr(uuid, "value") else uuid
    for device in library.devices:
        if device.words["uuid"].encode() == wanted:
            _point(target, library, device)
            return OK
    return NOT_FOUND


def _text(key: str) -> Callable[..., int]:
    def tell(_: FakeLibrary, device: Device, buffer: Word, size: Word) -> int:
        buffer.value = device.words[key].encode()[: size.value - 1]
        return OK

    return tell


def _capability(_: FakeLibrary, device: Device, major: Word, minor: Word) -> int:
    major._obj.value, minor._obj.value = (int(part) for part in device.words["cc"].split("."))
    return OK


def _pci(_: FakeLibrary, device: Device, target: Word) -> int:
    target._obj.busId = device.words["pci"].encode()
    return OK


def _attributes(_: FakeLibrary, device: Device, target: Word) -> int:
    if device.board is None:
        return UNSUPPORTED
    target._obj.multiprocessorCount = device.integer("sms")
    return OK


def _memory(_: FakeLibrary, device: Device, target: Word) -> int:
    total, used, kept = (round(device.real(f"{key}_mib") * _MIB) for key in ("memory", "used", "reserved"))
    memory = target._obj
    memory.total, memory.free = total, total - used - kept
    if hasattr(memory, "reserved"):
        memory.reserved, memory.used = kept, used
    else:
        memory.used = used + kept
    return OK


def _modes(key: str, least_capability: int = 0) -> Callable[..., int]:
    def tell(_: FakeLibrary, device: Device, current: Word, pending: Word) -> int:
        if device.board is not None or int(device.words["cc"].partition(".")[0]) < least_capability:
            return UNSUPPORTED
        current._obj.value = pending._obj.value = bool(device.instances) if key == "mig" else device.integer(key)
        return OK

    return tell


def _instance(library: FakeLibrary, device: Device, index: Word, target: Word) -> int:
    if _value(index) >= len(device.instances):
        return NOT_FOUND
    _point(target, library, device.instances[_value(index)])
    return OK


def _instance_id(_: FakeLibrary, device: Device, target: Word) -> int:
    assert device.board is not None
    target._obj.value = next(n for n, known in enumerate(device.board.instances, start=1) if known is device)
    return OK


def _utilization(_: FakeLibrary, device: Device, target: Word) -> int:
    if not device.integer("util"):
        return UNSUPPORTED
    target._obj.gpu, target._obj.memory = 93, 41
    return OK


def _processes(_: FakeLibrary, device: Device, count: Word, found: Word) -> int:
    room, count._obj.value = count._obj.value, int("process" in device.words)
    if room < count._obj.value:
        return TOO_SMALL
    if count._obj.value:
        found[0].pid = device.integer("process")
    return OK


def _fields(_: FakeLibrary, device: Device, count: Word, target: Word) -> int:
    for asked in target._obj[: count.value]:
        found = device.field_value(asked.fieldId, asked.scopeId, time.monotonic())
        asked.nvmlReturn = UNSUPPORTED if found is None else OK
        if found is not None:
            asked.valueType = found[0]
            setattr(asked.value, "uiVal" if found[0] == UINT else "ullVal", found[1])
    return OK


def _sample(library: FakeLibrary, device: Device, *words: Word) -> int:
    if not device.integer("gpm"):
        return UNSUPPORTED
    library.sampled = device.instances[_value(words[0]) - 1] if len(words) > 1 else device
    return OK


def _compare(library: FakeLibrary, asked: Word) -> int:
    assert library.sampled is not None
    tensor = library.sampled.real("tensor_percent")
    values = {2: 88.0, 5: tensor, 7: tensor, 10: library.sampled.real("dram_percent")}
    for metric in asked._obj.metrics[: asked._obj.numMetrics]:
        metric.nvmlReturn, metric.value = OK, values.get(metric.metricId, 0.0)
    return OK


def _set(target: Word, **values: int) -> int:
    for name, value in values.items():
        setattr(target._obj, name, value)
    return OK


def _link_is_up(_: FakeLibrary, device: Device, link: Word, target: Word) -> int:
    if not device.integer("nvlinks"):
        return UNSUPPORTED
    return INVALID if _value(link) >= 18 else _set(target, value=_value(link) < device.integer("nvlinks"))


def _value(number: Word) -> int:
    return int(getattr(number, "value", number))


_FUNCTIONS: dict[str, Callable[..., int | None]] = {
    "nvmlInitWithFlags": lambda library, _flags: library.start(),
    "nvmlShutdown": lambda library: library.calls.clear(),
    "nvmlSystemGetDriverVersion": lambda library, text, _: setattr(text, "value", library.system["driver"].encode()),
    "nvmlSystemGetCudaDriverVersion_v2": lambda library, target: _set(target, value=int(library.system["cuda"])),
    "nvmlDeviceGetCount_v2": lambda library, target: _set(target, value=len(library.boards)),
    "nvmlDeviceGetHandleByIndex_v2": _by_index,
    "nvmlDeviceGetHandleByUUID": _by_uuid,
    "nvmlDeviceGetUUID": _text("uuid"),
    "nvmlDeviceGetName": _text("name"),
    "nvmlDeviceGetPciInfo_v3": _pci,
    "nvmlDeviceGetCudaComputeCapability": _capability,
    "nvmlDeviceGetAttributes_v2": _attributes,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetMemoryInfo_v2": _memory,
    "nvmlDeviceGetEccMode": _modes("ecc"),
    "nvmlDeviceGetMigMode": _modes("mig", 8),
    "nvmlDeviceGetMaxMigDeviceCount": lambda _, _device, target: _set(target, value=7),
    "nvmlDeviceGetMigDeviceHandleByIndex": _instance,
    "nvmlDeviceGetGpuInstanceId": _instance_id,
    "nvmlDeviceGetComputeInstanceId": lambda _, _device, target: _set(target, value=0),
    "nvmlDeviceGetTemperature": lambda _, _device, _sensor, target: _set(target, value=61),
    "nvmlDeviceGetUtilizationRates": _utilization,
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes,
    "nvmlDeviceGetFieldValues": _fields,
    "nvmlDeviceGetNvLinkState": _link_is_up,
    "nvmlGpmQueryDeviceSupport": lambda _, device, target: _set(target, isSupportedDevice=device.integer("gpm")),
    "nvmlGpmSampleAlloc": lambda _, _target: OK,
    "nvmlGpmSampleGet": _sample,
    "nvmlGpmMigSampleGet": _sample,
    "nvmlGpmMetricsGet": _compare,
}
