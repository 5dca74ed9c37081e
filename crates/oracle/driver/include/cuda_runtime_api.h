// What the headers of PyTorch's allocator need of the CUDA runtime, in declarations of our own: types by
// name, constants by number. Nothing here is called but what the fake runtime exports.
#pragma once

#include <cstddef>

struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphNode_st;
typedef CUstream_st* cudaStream_t;
typedef CUevent_st* cudaEvent_t;
typedef CUgraph_st* cudaGraph_t;
typedef CUgraphNode_st* cudaGraphNode_t;
struct cudaDeviceProp;
struct cudaIpcMemHandle_t;
struct cudaIpcEventHandle_t;

enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNotReady = 600,
};
typedef cudaError cudaError_t;

enum cudaMemcpyKind { cudaMemcpyDefault = 4 };

enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2,
};

enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2,
};

struct CUuserObject_st;
struct cudaGraphEdgeData;
typedef CUuserObject_st* cudaUserObject_t;
typedef void (*cudaHostFn_t)(void*);
enum { cudaUserObjectNoDestructorSync = 1, cudaGraphUserObjectMove = 1 };

extern "C" {
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t,
    cudaStreamCaptureStatus*,
    unsigned long long* = nullptr,
    cudaGraph_t* = nullptr,
    const cudaGraphNode_t** = nullptr,
    const cudaGraphEdgeData** = nullptr,
    size_t* = nullptr);
cudaError_t cudaStreamGetCaptureInfo_v2(
    cudaStream_t,
    cudaStreamCaptureStatus*,
    unsigned long long* = nullptr,
    cudaGraph_t* = nullptr,
    const cudaGraphNode_t** = nullptr,
    size_t* = nullptr);
cudaError_t cudaUserObjectCreate(cudaUserObject_t*, void*, cudaHostFn_t, unsigned, unsigned);
cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned);
cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned);
cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaMemGetInfo(size_t*, size_t*);
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamQuery(cudaStream_t);
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus*);
cudaError_t cudaStreamGetPriority(cudaStream_t, int*);
cudaError_t cudaDeviceGetStreamPriorityRange(int*, int*);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*);
}
