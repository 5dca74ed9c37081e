"""What scripts do beside training: threads, much output, devices hidden, management asked, memory past PyTorch's allocator."""

import ctypes
import os
import subprocess
import sys
import threading

os.environ["CUDA_VISIBLE_DEVICES"] = "0"

import torch

# Threads allocate at once, on streams of their own.
def work():
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            torch.zeros(1 << 20, device="cuda").sum()
    torch.cuda.synchronize()


threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

# Much output: it is read, and only its end is kept.
lines = "".join(f"{'x' * 1023}\n" for _ in range(1 << 10))
for _ in range(2 << 10):
    print(lines, end="")
print("the end")

# One device, whoever asks.
assert torch.cuda.device_count() == 1
management = ctypes.CDLL("libnvidia-ml.so.1")
assert management.nvmlInit_v2() == 0
count = ctypes.c_uint()
assert management.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 and count.value == 1
device, memory = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
assert management.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert management.nvmlDeviceGetMemoryInfo(device, memory) == 0 and memory[0] > 139 << 30 and memory[2] > 0
seen = subprocess.run(
    [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"],
    env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=True,
)
assert seen.stdout.strip() == "0", seen

# And by the program.
told = subprocess.run(
    ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True
)
assert told.stdout == "NVIDIA H200, 143155\n", told

# Memory past PyTorch's allocator.
place = ctypes.c_void_p()
runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")
assert runtime.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(3 << 30)) == 0
big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
