// What crosses the interface, as `crates/drop-in/src/types.rs` and `interface.rs` have it.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tonnage {

constexpr uint64_t VERSION = 7;
constexpr uint32_t NO_STACK = UINT32_MAX;
// What a function that gives memory answers where it did not come to an answer.
constexpr uint64_t NO_ANSWER = UINT64_MAX;

enum Status : int32_t { OK = 0, NOT_CACHED = 1, OUT_OF_MEMORY = 2, FAILED = 3, BROKEN = 4 };

struct Options {
  const char* device;
  uint32_t devices;
  uint64_t capacity;
  const char* policy;
  const char* settings;
  const char* release;
  uint64_t limit;
  uint8_t publish;
};

struct PoolName {
  uint64_t first;
  uint64_t second;
};

struct Quantity {
  int64_t current, peak, allocated, freed;
};

struct Failure {
  const char* text;
  uint64_t asked, total, free, allocated, reserved, rounded;
  uint8_t rejected;
};

struct Segment {
  uint64_t address, total, requested, allocated, active, stream;
  PoolName pool;
  uint64_t first_block, blocks;
  uint32_t stack, number;
  uint8_t large, expandable;
};

struct Block {
  uint64_t size, requested;
  uint32_t stack;
  uint8_t allocated, active;
};

struct Entry {
  uint64_t address, size, stream;
  PoolName pool;
  uint64_t time_us;
  uint32_t stack, action;
};

struct Moment {
  const Segment* segments;
  uint64_t segment_count;
  const Block* blocks;
  uint64_t block_count;
  const Entry* entries;
  uint64_t entry_count;
  void* owner;
};

using TextFn = void (*)(void*, const char*, size_t);
using TrackerFn = void (*)(void*, uint32_t, const Entry*);

struct Interface {
  uint64_t version;
  Status (*open)(const Options*);
  Failure (*failure)();
  Status (*allocate_cached)(uint32_t, uint64_t bytes, uint64_t stream, uint32_t stack, uint64_t* address);
  Status (*allocate_uncached)(
      uint32_t, uint64_t bytes, uint64_t stream, uint32_t stack, uint8_t freed, uint64_t* address);
  Status (*free)(uint32_t first, uint64_t address, uint32_t stack, uint32_t* device, uint64_t* bytes);
  Status (*record_stream)(uint32_t first, uint64_t address, uint64_t stream);
  Status (*hold_stream)(uint32_t, uint64_t address, uint64_t stream);
  Status (*empty_cache)(PoolName, uint32_t stack);
  Status (*stats)(uint32_t, Quantity* quantities, int64_t* counts);
  Status (*reserved_by_pools)(uint32_t, void (*)(void*, PoolName, const Quantity*), void*);
  Status (*reset_peaks)(uint32_t);
  Status (*reset_sums)(uint32_t);
  Status (*set_fraction)(uint32_t, double);
  Status (*fraction)(uint32_t, double*);
  Status (*set_limit)(uint32_t, uint64_t);
  Status (*largest_free)(uint32_t, uint64_t*);
  Status (*expandable_segments)(uint32_t, void (*)(void*, uint64_t stream, uint8_t small, uint64_t bytes), void*);
  Status (*segment_of)(uint32_t first, uint64_t address, uint64_t* begin, uint64_t* bytes, uint8_t* pages);
  Status (*stream_of)(uint32_t first, uint64_t address, uint32_t* device, uint64_t* stream);
  Status (*size_of)(uint32_t first, uint64_t address, uint64_t* bytes);
  Status (*share_pages)(uint32_t, uint32_t with);
  Status (*finish_captured)(uint32_t, uint64_t address);
  Status (*record_history)(uint8_t on, uint64_t entries, uint32_t level, uint8_t clear, uint32_t skipped);
  Status (*moment)(uint32_t, PoolName, uint8_t with_history, Moment*);
  Status (*forget_moment)(Moment*);
  Status (*stacks_in_use)(uint32_t, void (*)(void*, uint32_t), void*);
  Status (*begin_pool)(uint32_t, PoolName, uint8_t (*)(void*, uint64_t), void*, void (*)(void*));
  Status (*end_pool)(uint32_t, PoolName);
  Status (*use_pool)(uint32_t, PoolName);
  Status (*use_pool_from)(
      uint32_t, PoolName, uint64_t (*)(void*, uint64_t), void (*)(void*, uint64_t), void*, void (*)(void*));
  Status (*release_pool)(uint32_t, PoolName);
  Status (*pool_uses)(uint32_t, PoolName, uint64_t*);
  Status (*set_no_split)(uint32_t, PoolName);
  Status (*set_use_on_oom)(uint32_t, PoolName, uint8_t);
  Status (*live_in_pool)(uint32_t, PoolName, void (*)(void*, uint64_t), void*);
  Status (*pool_state)(uint32_t, PoolName, void**);
  Status (*forget_pool_state)(void*);
  Status (*set_pool_state)(
      uint32_t, const void*, uint32_t stack, void (*)(void*, uint64_t), void (*)(void*, uint64_t), void*);
  Status (*begin_capture)(uint32_t, uint8_t (*)());
  Status (*end_capture)(uint32_t);
  Status (*configure)(const char*);
  Status (*settings)(TextFn, void*);
  Status (*track)(TrackerFn, void*);
  Status (*release)(uint32_t, PoolName, uint64_t, uint64_t*);
  Status (*pause)(uint32_t, PoolName, uint8_t keep, uint64_t*);
  Status (*resume)(uint32_t, PoolName);
};

} // namespace tonnage
