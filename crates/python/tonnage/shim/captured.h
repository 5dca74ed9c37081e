// Blocks that are freed in a graph capture while other streams use them, under `graph_capture_record_stream_reuse`: the nodes at which
// its streams are by then mark the end of its uses, and once all of them come before what is captured next on the block's own stream, it
// serves again. Nothing is added to the graph.
//
// Where the runtime does not answer, a block stays where it is until the capture ends, as without the setting.

#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace tonnage {

using Node = void*;

// Where a stream is in a capture: which one, and what comes next comes behind these nodes.
struct CapturedStream {
  unsigned long long capture = 0;
  cudaGraph_t graph = nullptr;
  std::vector<Node> last;
};

inline std::optional<CapturedStream> captured(cudaStream_t stream) {
  CapturedStream at;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const void* nodes = nullptr;
  size_t count = 0;
#if TONNAGE_CUDA >= 13
  const void* edges = nullptr;
  const auto wrong = cudaStreamGetCaptureInfo(stream, &status, &at.capture, &at.graph, &nodes, &edges, &count);
#else
  const auto wrong = cudaStreamGetCaptureInfo_v2(stream, &status, &at.capture, &at.graph, &nodes, &count);
#endif
  if (wrong != cudaSuccess) {
    (void)cudaGetLastError();
    return std::nullopt;
  }
  if (status != cudaStreamCaptureStatusActive) {
    return std::nullopt;
  }
  const auto* first = static_cast<const Node*>(nodes);
  at.last.assign(first, first + count);
  return at;
}

// The nodes that a node comes right behind; nothing if the runtime cannot tell.
inline std::optional<std::vector<Node>> before(Node node) {
  size_t count = 0;
#if TONNAGE_CUDA >= 13
  auto wrong = cudaGraphNodeGetDependencies(node, nullptr, nullptr, &count);
#else
  auto wrong = cudaGraphNodeGetDependencies(node, nullptr, &count);
#endif
  std::vector<Node> nodes(count);
  if (wrong == cudaSuccess && count > 0) {
#if TONNAGE_CUDA >= 13
    // Eight bytes for each edge, of which none is looked at.
    std::vector<unsigned long long> edges(count);
    wrong = cudaGraphNodeGetDependencies(node, nodes.data(), edges.data(), &count);
#else
    wrong = cudaGraphNodeGetDependencies(node, nodes.data(), &count);
#endif
  }
  if (wrong != cudaSuccess) {
    (void)cudaGetLastError();
    return std::nullopt;
  }
  nodes.resize(count);
  return nodes;
}

class CapturedBlocks {
 public:
  // Whether anything is noted: to know without the lock.
  bool any() const {
    return any_.load(std::memory_order_relaxed);
  }

  // A stream uses a block, in a capture.
  void note_use(void* block, cudaStream_t stream) {
    std::lock_guard<std::mutex> guard(mutex_);
    // A loop may say it of the same stream again and again.
    auto& streams = uses_[block];
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
      streams.push_back(stream);
    }
    any_.store(true);
  }

  // A block is being freed, on a device and its own stream. If it was used by others in a capture, what they have captured marks the end.
  void note_free(int device, void* block, cudaStream_t own) {
    std::lock_guard<std::mutex> guard(mutex_);
    forget_freed(block);
    const auto found = uses_.find(block);
    if (found == uses_.end()) {
      return;
    }
    std::vector<cudaStream_t> streams = std::move(found->second);
    uses_.erase(found);
    streams.push_back(own);
    Freed freed{device, block, own, 0, {}};
    for (const auto stream : std::unordered_set<cudaStream_t>(streams.begin(), streams.end())) {
      const auto at = captured(stream);
      if (!at || (freed.capture != 0 && freed.capture != at->capture)) {
        return;
      }
      freed.capture = at->capture;
      freed.marks.insert(freed.marks.end(), at->last.begin(), at->last.end());
    }
    // Without a mark nobody can tell what comes behind it.
    if (!freed.marks.empty()) {
      freed_.push_back(std::move(freed));
    }
  }

  // A block was handed out: whatever was noted of an earlier one at its address is over.
  void handed_out(void* block) {
    std::lock_guard<std::mutex> guard(mutex_);
    uses_.erase(block);
    forget_freed(block);
  }

  // The blocks of a stream whose uses all come before what it captures next. They are no longer kept here.
  std::vector<void*> done_before(int device, cudaStream_t stream) {
    std::vector<void*> done;
    std::lock_guard<std::mutex> guard(mutex_);
    const auto is_of_it = [&](const Freed& it) { return it.device == device && it.own == stream; };
    if (std::none_of(freed_.begin(), freed_.end(), is_of_it)) {
      return done;
    }
    const auto at = captured(stream);
    if (!at || at->last.empty()) {
      return done;
    }
    Behind& behind = behind_[stream];
    if (behind.capture != at->capture) {
      behind = Behind{at->capture, {}};
    }
    if (!behind.look(at->last)) {
      return done;
    }
    for (size_t number = 0; number < freed_.size();) {
      const Freed& it = freed_[number];
      const auto is_behind = [&](Node mark) { return behind.nodes.count(mark) != 0; };
      if (is_of_it(it) && it.capture == at->capture && std::all_of(it.marks.begin(), it.marks.end(), is_behind)) {
        done.push_back(it.block);
        freed_.erase(freed_.begin() + static_cast<std::ptrdiff_t>(number));
      } else {
        ++number;
      }
    }
    return done;
  }

  // No capture is under way.
  void forget() {
    std::lock_guard<std::mutex> guard(mutex_);
    uses_.clear();
    freed_.clear();
    behind_.clear();
    any_.store(false);
  }

 private:
  struct Freed {
    int device;
    void* block;
    cudaStream_t own;
    unsigned long long capture;
    std::vector<Node> marks;
  };

  void forget_freed(void* block) {
    const auto is_it = [&](const Freed& it) { return it.block == block; };
    freed_.erase(std::remove_if(freed_.begin(), freed_.end(), is_it), freed_.end());
  }

  // The nodes of a capture that come before what a stream captures next: they only become more.
  struct Behind {
    unsigned long long capture = 0;
    std::unordered_set<Node> nodes;

    // Adds these nodes and all before them. Says whether the runtime could tell.
    bool look(std::vector<Node> open) {
      while (!open.empty()) {
        const Node node = open.back();
        if (nodes.count(node) != 0) {
          open.pop_back();
          continue;
        }
        const auto more = before(node);
        if (!more) {
          return false;
        }
        open.pop_back();
        nodes.insert(node);
        open.insert(open.end(), more->begin(), more->end());
      }
      return true;
    }
  };

  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::unordered_map<void*, std::vector<cudaStream_t>> uses_;
  std::vector<Freed> freed_;
  std::unordered_map<cudaStream_t, Behind> behind_;
};

} // namespace tonnage
