// The driver's types are not needed by name; the version chooses between names of the runtime.
#pragma once

#include <cuda_runtime_api.h>

#ifndef CUDA_VERSION
#define CUDA_VERSION 13000
#endif
