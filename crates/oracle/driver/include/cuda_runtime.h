// The runtime is the same with and without its C++ parts.
#pragma once

#include <cuda_runtime_api.h>

