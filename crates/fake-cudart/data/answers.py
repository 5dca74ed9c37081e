"""What cuDNN tells of plans without a device: lines of bytes and JSON to lines of bytes, its answer, and JSON.

Run on the fake libraries, so that no device is found: tonnage-on-fakes python answers.py < MEASURED > ANSWERED
"""

import ctypes
import json
import pathlib
import sys

import nvidia.cudnn

PLAN, DEVICE = 5, 38
WORKSPACE, PLAN_JSON, PLAN_DEVICE, DEVICE_JSON = 402, 405, 407, 2702
NUMBER, DESCRIPTOR, CHARACTERS = 3, 15, 24

folder = pathlib.Path(next(iter(nvidia.cudnn.__path__)), "lib")
# The installed library's own functions, not those that stand in front of it.
cudnn = ctypes.CDLL(str(folder / "libcudnn.so.9"), mode=ctypes.RTLD_GLOBAL)


def check(code):
    if code:
        raise RuntimeError(f"cuDNN answers {code}")


def make(kind):
    descriptor = ctypes.c_void_p()
    check(cudnn.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor)))
    return descriptor


def tell(descriptor, name, kind, count, value):
    check(cudnn.cudnnBackendSetAttribute(descriptor, name, kind, ctypes.c_int64(count), value))


def describe(profile):
    device, text = make(DEVICE), json.dumps(profile).encode()
    tell(device, DEVICE_JSON, CHARACTERS, len(text), text)
    check(cudnn.cudnnBackendFinalize(device))
    return device


def answer(text, device):
    plan = make(PLAN)
    try:
        tell(plan, PLAN_DEVICE, DESCRIPTOR, 1, ctypes.byref(device))
        tell(plan, PLAN_JSON, CHARACTERS, len(text), text)
        check(cudnn.cudnnBackendFinalize(plan))
        bytes_, count = ctypes.c_int64(), ctypes.c_int64()
        check(
            cudnn.cudnnBackendGetAttribute(
                plan, WORKSPACE, NUMBER, ctypes.c_int64(1), ctypes.byref(count), ctypes.byref(bytes_)
            )
        )
        return bytes_.value
    finally:
        cudnn.cudnnBackendDestroyDescriptor(plan)


devices = {}
for line in sys.stdin:
    measured, text = line.rstrip("\n").split(" ", 1)
    profile = json.loads(text)["GPUProfile"]
    key = json.dumps(profile, sort_keys=True)
    if key not in devices:
        devices[key] = describe(profile)
    print(measured, answer(text.encode(), devices[key]), text)
