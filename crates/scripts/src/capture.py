"""A card's data, as one JSON object: what the driver tells of it and, where PyTorch is there, what it sees and takes.

In:  the number of the device, in the words of this process. Out: the object, in the last line.
"""

import ctypes
import json
import sys

ATTRIBUTES = range(1, 150)
"""Numbers of attributes: newer drivers know more than older ones; what one does not know is left out."""

CONTEXT = 860_684_288
"""What an H200's driver took, with PyTorch's kernels: the estimate where it cannot be measured."""


class Failed(Exception):
    pass


def load(name):
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise Failed(f"there is no CUDA driver: {error}") from None


def call(driver, function, *arguments):
    code = getattr(driver, function)(*arguments)
    if code:
        raise Failed(f"{function} answers {code}")


def of_driver(ordinal):
    driver = load("libcuda.so.1")
    call(driver, "cuInit", 0)
    count, device, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    call(driver, "cuDeviceGetCount", ctypes.byref(count))
    if not 0 <= ordinal < count.value:
        raise Failed(f"there is no device {ordinal}: the driver has {count.value}")
    call(driver, "cuDeviceGet", ctypes.byref(device), ordinal)
    call(driver, "cuDriverGetVersion", ctypes.byref(version))
    name, total = ctypes.create_string_buffer(256), ctypes.c_size_t()
    call(driver, "cuDeviceGetName", name, len(name), device)
    call(driver, "cuDeviceTotalMem_v2", ctypes.byref(total), device)
    attributes = {}
    for number in ATTRIBUTES:
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0 and value.value:
            attributes[number] = value.value
    return name.value.decode(), total.value, version.value, attributes


def used(ordinal):
    """Bytes of the device that are taken, by whomever; nothing where it is not told."""
    try:
        management = ctypes.CDLL("libnvidia-ml.so.1")
        handle, memory = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
        management.nvmlInit_v2()
        code = management.nvmlDeviceGetHandleByIndex_v2(ordinal, ctypes.byref(handle))
        code = code or management.nvmlDeviceGetMemoryInfo(handle, memory)
    except (OSError, AttributeError):
        return None
    return None if code else memory[2]


def of_torch(ordinal):
    """PyTorch's version, memory as it sees it, and what driver and kernels took once a step of training was done."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    before = used(ordinal)
    torch.cuda.set_device(ordinal)
    model = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.randn(2, 8, 64, device="cuda", dtype=torch.bfloat16)).float().logsumexp(-1).mean().backward()
    optimizer.step()
    torch.cuda.synchronize()
    after, taken = used(ordinal), None
    if before is not None and after is not None:
        taken = after - before - torch.cuda.memory_reserved()
    return str(torch.__version__), torch.cuda.get_device_properties(ordinal).total_memory, taken


def for_cudnn(name, total, version, of):
    """The device in the words of cuDNN's device-less mode."""
    return {
        "maxGridSize": [of(5), of(6), of(7)],
        "maxBlockSize": [of(2), of(3), of(4)],
        "regsPerBlock": of(12),
        "multiProcessorCount": of(16),
        "warpSize": of(10),
        "maxSharedMemoryPerBlock": of(8),
        "maxSharedMemoryPerBlockOptin": of(97),
        "reservedSharedMemoryPerBlock": of(111),
        "maxRegistersPerSM": of(82),
        "maxCtasPerSM": of(106),
        "maxThreadsPerBlock": of(1),
        "maxThreadsPerSM": of(39),
        "pciDeviceId": of(34),
        "isTccDriver": of(35),
        "supportCoopLaunch": of(95),
        "totalGlobalMem": total,
        "smClockRateKHz": of(13),
        "memClockRateKHz": of(36),
        "l2CacheSize": of(38),
        "cudaDeviceId": 0,
        "deviceVer": 100 * of(75) + 10 * of(76),
        "driverVer": version,
        "deviceName": name,
    }


def capture(ordinal):
    name, total, version, attributes = of_driver(ordinal)
    cuda = f"CUDA {version // 1000}.{version % 1000 // 10}"
    seen = of_torch(ordinal)
    torch, taken = "no PyTorch", None
    if seen is not None:
        torch, total, taken = f"PyTorch {seen[0]}", *seen[1:]
    is_measured = taken is not None and 0 < taken < total
    return {
        "name": name,
        "measured": True,
        "source": f"captured from the card, {torch}, {cuda}",
        "memory": total,
        "context": taken if is_measured else CONTEXT,
        "context_measured": is_measured,
        "attributes": attributes,
        "cudnn": for_cudnn(name, total, version, lambda number: attributes.get(number, 0)),
    }


try:
    print(json.dumps(capture(int(sys.argv[1]))))
except Failed as error:
    print(json.dumps({"error": str(error)}))
