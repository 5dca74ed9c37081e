// PyTorch's allocator class over the engine's interface: every call is handed on, and what comes back is what PyTorch's own
// allocator would give. Built against the headers of the PyTorch that is installed.
//
// The way of a request: a stack, if a history wants one; what is cached; PyTorch's callbacks that free memory elsewhere,
// without any lock; the rest of the engine's ladder; and if that fails the observers, then torch.OutOfMemoryError.

#include <c10/core/AllocatorConfig.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <exception>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "captured.h"
#include "contexts.h"
#include "tonnage.h"

// PyTorch's release, as 211 for 2.11: its class gains functions and arguments from one to the next.
#ifndef TONNAGE_TORCH
#error "TONNAGE_TORCH is the release: 211 for 2.11"
#endif

namespace tonnage {
namespace {

using namespace c10::cuda::CUDACachingAllocator;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
#if TONNAGE_TORCH >= 211
using c10::CachingDeviceAllocator::AnnotationEntry;
#endif
using c10::DeviceIndex;
using c10::GatheredContext;
using c10::MempoolId_t;

const Interface* engine = nullptr;

// What torch.compile is doing on a thread, innermost last, and what the program says of what it does.
struct Doing {
  std::vector<std::string> compiling;
  std::string metadata;
  // As contexts have it: none if there is nothing to say.
  std::shared_ptr<const Words> words;

  void changed() {
    const bool nothing = compiling.empty() && metadata.empty();
    words = nothing ? nullptr : std::make_shared<const Words>(Words{compiling.empty() ? "" : compiling.back(), metadata});
  }
};

// Made when there is something to say, and never destroyed: tensors may go after whatever a thread destroys. Plain pointers, so
// that to look costs a load.
thread_local Doing* doing = nullptr;

Doing& doing_here() {
  if (doing == nullptr) {
    doing = new Doing();
  }
  return *doing;
}

// What a function of PyTorch's threw while the engine called it. No exception goes through the engine: it waits here until
// that call is over.
thread_local std::exception_ptr* thrown = nullptr;

// Whether this process was forked off one that uses a device: its memory is that one's, and locks may be held for good.
std::atomic<bool> orphan{false};

// Calls a function of PyTorch's for the engine; where it throws, `otherwise` is its answer.
template <typename Call>
uint8_t kept_from_throwing(Call call, uint8_t otherwise) noexcept {
  try {
    return call();
  } catch (...) {
    delete thrown;
    thrown = new std::exception_ptr(std::current_exception());
    return otherwise;
  }
}

void throw_what_was_kept() {
  if (C10_UNLIKELY(thrown != nullptr)) {
    const std::unique_ptr<std::exception_ptr> kept(std::exchange(thrown, nullptr));
    std::rethrow_exception(*kept);
  }
}

// What cannot be goes to the caller as PyTorch's error; what breaks the allocator too.
void check(Status status) {
  throw_what_was_kept();
  if (C10_UNLIKELY(status != OK)) {
    const Failure failure = engine->failure();
    TORCH_CHECK(false, failure.text);
  }
}

// The same of what destructors call, which must not throw: what broke the allocator the next call that may says, and what a function of
// the program's threw meanwhile is warned of. What is thrown all the same is the caller's fault: a block or a pool that is not there.
// Whether the allocator goes on.
bool check_of_destructor(Status status) {
  if (C10_UNLIKELY(status == BROKEN)) {
    TORCH_WARN_ONCE("tonnage: memory is not taken back: ", engine->failure().text);
    return false;
  }
  if (C10_UNLIKELY(thrown != nullptr)) {
    try {
      throw_what_was_kept();
    } catch (const std::exception& error) {
      TORCH_WARN("tonnage: a function that is told of changes of memory failed: ", error.what());
    } catch (...) {
      TORCH_WARN("tonnage: a function that is told of changes of memory failed");
    }
  }
  check(status);
  return true;
}

PoolName name_of(const MempoolId_t& pool) {
  return PoolName{pool.first, pool.second};
}

uint64_t number_of(cudaStream_t stream) {
  return reinterpret_cast<uintptr_t>(stream);
}

void* pointer(uint64_t address) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(address));
}

uint64_t address_of(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

#if TONNAGE_TORCH >= 211
using StreamPointer = void*;
#else
using StreamPointer = cudaStream_t;
#endif

StreamPointer stream_of(uint64_t number) {
  return reinterpret_cast<StreamPointer>(static_cast<uintptr_t>(number));
}

// Whether a stream is another owner's: PyTorch names those by their handles, and its own by small numbers.
bool is_external(const c10::cuda::CUDAStream& stream) {
  return stream.id() != 0 && static_cast<uint64_t>(stream.id()) == number_of(stream.stream());
}

void raw_free(void* pointer);
void free_uncached(void* pointer);

// Settings for pinned memory, which is not the engine's: as PyTorch has read them. Which releases tell of them, the class says.
template <typename Info, typename Config = c10::CachingAllocator::AcceleratorAllocatorConfig>
auto tell_pinned(Info& info, int) -> decltype(
    info.max_round_threshold = Config::pinned_max_round_threshold(),
    info.max_cached_size = Config::pinned_max_cached_size(),
    void()) {
  info.max_round_threshold = Config::pinned_max_round_threshold();
  info.max_cached_size = Config::pinned_max_cached_size();
}

template <typename Info>
void tell_pinned(Info&, long) {}

// Which segment was obtained before which: NCCL registers those of a pool in this order, which must be one on all ranks. Releases that
// ask for it take no segment without.
template <typename Info>
auto tell_number(Info& info, uint32_t number, int) -> decltype(info.registration_counter = 0, void()) {
  info.registration_counter = static_cast<int32_t>(number & INT32_MAX);
}

template <typename Info>
void tell_number(Info&, uint32_t, long) {}

// A pool's state, until PyTorch drops it.
struct PoolState : public AllocatorState {
  explicit PoolState(void* state) : state(state) {}
  ~PoolState() override {
    engine->forget_pool_state(state);
  }
  void* state;
};

class Allocator final : public CUDAAllocator {
 public:
  // The class, besides what follows.
  std::string name() override {
    // What programs compare with: it behaves as that one does.
    return "native";
  }

  void init(int device_count) override {
    // Devices are opened when they are first asked for.
    initialized_ = true;
  }

  bool initialized() override {
    return initialized_;
  }

  void enable(bool value) override {
    enabled_ = value;
  }

  bool isEnabled() const override {
    return enabled_;
  }

  // Requests.
  c10::DataPtr allocate(size_t bytes) override {
    constexpr size_t EXABYTE = 1152921504606846976ULL;
    TORCH_CHECK_WITH(
        OutOfMemoryError, bytes < EXABYTE, "CUDA out of memory. Tried to allocate more than 1EB memory.");
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    void* pointer = nullptr;
    if (C10_UNLIKELY(!caches())) {
      if (bytes != 0) {
        pointer = allocate_uncached(bytes);
      }
      return {pointer, pointer, &free_uncached, c10::Device(c10::DeviceType::CUDA, device)};
    }
    if (bytes != 0) {
      pointer = serve_current(device, bytes);
    }
    return {pointer, pointer, &raw_free, c10::Device(c10::DeviceType::CUDA, device)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return caches() ? &raw_free : &free_uncached;
  }

  void* raw_alloc(size_t bytes) override {
    if (bytes == 0) {
      return nullptr;
    }
    if (C10_UNLIKELY(!caches())) {
      return allocate_uncached(bytes);
    }
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return serve_current(device, bytes);
  }

  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    if (bytes == 0) {
      return nullptr;
    }
    if (C10_UNLIKELY(!caches())) {
      return allocate_uncached(bytes);
    }
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    const auto current = c10::cuda::getCurrentCUDAStream(device);
    // Of a handle alone nobody knows whose it is.
    const bool external = stream == current.stream() ? is_external(current) : stream != nullptr;
    return serve(device, bytes, stream, external);
  }

  void raw_delete(void* pointer) override {
    // What was served before the cache was switched off goes back where it came from.
    if (C10_UNLIKELY(!caches()) &&
        engine->segment_of(here(), address_of(pointer), nullptr, nullptr, nullptr) != OK) {
      free_uncached(pointer);
    } else {
      take_back(pointer);
    }
  }

  void set_pages(bool pages) {
    pages_ = pages;
  }

  // The settings may be others now.
  void note_settings() {
    reuses_captured_.store(settings().graph_capture_record_stream_reuse);
  }

  void take_back(void* pointer) {
    if (pointer == nullptr || C10_UNLIKELY(orphan.load(std::memory_order_relaxed))) {
      return;
    }
    const Noted note(*this, RecordContext::ALL);
    const auto guard = uncaptured();
    if (C10_UNLIKELY(any_used_elsewhere_.load(std::memory_order_relaxed))) {
      wait_for_other_devices(pointer);
    }
    if (C10_UNLIKELY(captured_.any())) {
      mark_captured_uses(pointer);
    }
    uint32_t device = 0;
    uint64_t bytes = 0;
    const Status status = engine->free(here(), address_of(pointer), note.stack, &device, &bytes);
    if (C10_UNLIKELY(!check_of_destructor(status))) {
      return;
    }
    if (const auto* python = c10::impl::GPUTrace::get_trace()) {
      (*python)->trace_gpu_memory_deallocation(c10::DeviceType::CUDA, reinterpret_cast<uintptr_t>(pointer));
    }
    // Of none when it is taken back later: an allocator behind a MemPool works on this thread, and the figures are not to be had.
    if (C10_LIKELY(bytes != 0)) {
      tell_profiler(pointer, -static_cast<int64_t>(bytes), device);
    }
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
  }

  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    // Memory of other owners, such as other processes, is not the allocator's to keep.
    if (data.get() == nullptr || data.get_deleter() != &raw_free) {
      return;
    }
    const uint64_t number = number_of(stream.stream());
    if (C10_UNLIKELY(stream.device_index() != data.device().index())) {
      // The engine of one device knows no streams of another.
      std::lock_guard<std::mutex> guard(used_elsewhere_mutex_);
      auto& streams = used_elsewhere_[data.get()];
      if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
        streams.push_back(stream);
      }
      any_used_elsewhere_.store(true);
      return;
    }
    check(engine->record_stream(here(), address_of(data.get()), number));
    if (C10_UNLIKELY(reuses_captured_.load(std::memory_order_relaxed) && diversions_.load() != 0)) {
      captured_.note_use(data.get(), stream.stream());
    }
    if (C10_UNLIKELY(is_external(stream))) {
      check(engine->hold_stream(data.device().index(), address_of(data.get()), number));
    }
  }

  void emptyCache(MempoolId_t pool) override {
    if (C10_UNLIKELY(orphan.load(std::memory_order_relaxed))) {
      return;
    }
    const Noted note(*this, RecordContext::ALL);
    const Status status = engine->empty_cache(name_of(pool), note.stack);
    if (pool.first == 0 && pool.second == 0) {
      check(status);
      return;
    }
    // Of one pool ~MemPool alone asks it.
    if (C10_UNLIKELY(status == FAILED)) {
      TORCH_WARN("tonnage: the memory of a MemPool that has gone is not given back yet: ", engine->failure().text);
    }
    check_of_destructor(status == FAILED ? OK : status);
  }

  // Figures.
  DeviceStats getDeviceStats(DeviceIndex device) override {
    Quantity quantities[29];
    int64_t counts[7];
    check(engine->stats(device, quantities, counts));
    const auto stat = [&](size_t place) { return stat_of(quantities[place]); };
    DeviceStats stats;
    StatArray* arrays[] = {
        &stats.allocation,      &stats.segment,        &stats.active,
        &stats.inactive_split,  &stats.allocated_bytes, &stats.reserved_bytes,
        &stats.active_bytes,    &stats.inactive_split_bytes, &stats.requested_bytes};
    for (size_t number = 0; number < std::size(arrays); ++number) {
      StatArray& array = *arrays[number];
      array[static_cast<size_t>(StatType::AGGREGATE)] = stat(3 * number);
      array[static_cast<size_t>(StatType::SMALL_POOL)] = stat(3 * number + 1);
      array[static_cast<size_t>(StatType::LARGE_POOL)] = stat(3 * number + 2);
    }
    stats.oversize_allocations = stat(27);
    stats.oversize_segments = stat(28);
    stats.num_alloc_retries = counts[0];
    stats.num_ooms = counts[1];
    stats.num_sync_all_streams = counts[2];
    stats.num_device_alloc = counts[3];
    stats.num_device_free = counts[4];
    stats.max_split_size = counts[5];
#if TONNAGE_TORCH >= 212
    stats.num_oom_rejections = counts[6];
#endif
#if TONNAGE_TORCH >= 213
    check(engine->reserved_by_pools(device, note_pool, &stats.reserved_bytes_by_private_pools));
#endif
    return stats;
  }

  void resetAccumulatedStats(DeviceIndex device) override {
    check(engine->reset_sums(device));
  }

  void resetPeakStats(DeviceIndex device) override {
    check(engine->reset_peaks(device));
  }

  double getMemoryFraction(DeviceIndex device) override {
    double share = 1;
    check(engine->fraction(device, &share));
    return share;
  }

  void setMemoryFraction(double fraction, DeviceIndex device) override {
    check(engine->set_fraction(device, fraction));
  }

#if TONNAGE_TORCH >= 210
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    std::vector<StreamSegmentSize> sizes;
    check(engine->expandable_segments(
        device,
        [](void* sizes, uint64_t stream, uint8_t small, uint64_t bytes) {
          // As PyTorch, which leaves out those of the default stream.
          if (stream != 0) {
            auto& all = *static_cast<std::vector<StreamSegmentSize>*>(sizes);
            all.emplace_back(reinterpret_cast<cudaStream_t>(pointer(stream)), small != 0, bytes);
          }
        },
        &sizes));
    return sizes;
  }
#endif

  void cacheInfo(DeviceIndex device, size_t* largest) override {
    if (*largest == 0) {
      c10::DeviceGuard guard(c10::Device(c10::DeviceType::CUDA, device));
      size_t total = 0;
      C10_CUDA_CHECK(cudaMemGetInfo(largest, &total));
    }
    uint64_t cached = 0;
    check(engine->largest_free(device, &cached));
    *largest = std::max<size_t>(*largest, cached);
  }

  void* getBaseAllocation(void* block, size_t* bytes) override {
    uint64_t begin = 0, size = 0;
    uint8_t pages = 0;
    check(engine->segment_of(here(), address_of(block), &begin, &size, &pages));
    TORCH_CHECK(
        !pages,
        "Tensors allocated with expandable_segments:True cannot be shared between processes, nor can those of the policy "
        "`pages`: install with policy=\"pytorch\" and without expandable_segments");
    if (bytes != nullptr) {
      *bytes = size;
    }
    return pointer(begin);
  }

  // Histories.
  void recordHistory(
      bool enabled,
      CreateContextFn recorder,
      size_t entries,
      RecordContext when,
      bool clear
#if TONNAGE_TORCH >= 211
      ,
      const std::vector<std::string>& skipped
#endif
      ) override {
    TORCH_CHECK(when == RecordContext::NEVER || recorder);
    uint32_t bits = 0;
#if TONNAGE_TORCH >= 211
    for (const auto& action : skipped) {
      bits |= 1U << static_cast<uint32_t>(c10::CachingDeviceAllocator::parseTraceEntryAction(action));
    }
#endif
    recorder_.store(enabled ? recorder : nullptr);
    level_.store(enabled ? when : RecordContext::NEVER);
    recording_.store(enabled);
    {
      std::lock_guard<std::mutex> guard(annotations_mutex_);
      most_annotations_ = std::max<size_t>(1, entries);
      if (clear || !enabled) {
        annotations_.clear();
      }
      forget_old_annotations();
    }
    // Of which calls there is something to say is decided here.
    check(engine->record_history(enabled, entries, static_cast<uint32_t>(RecordContext::ALL), clear, bits));
    if (clear || !enabled) {
      forget_contexts();
    }
  }

  bool isHistoryEnabled() override {
    return recording_.load();
  }

  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& words) override {
    if (!recording_.load()) {
      return;
    }
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    AnnotationEntry entry(device, 0);
    entry.time_.t_ = c10::getTime() / 1000;
    for (const auto& [key, value] : words) {
      entry.recordUserMetadata(key, value);
    }
    std::lock_guard<std::mutex> guard(annotations_mutex_);
    annotations_.push_back(std::move(entry));
    forget_old_annotations();
  }

  void forget_old_annotations() {
    while (annotations_.size() > most_annotations_) {
      annotations_.pop_front();
    }
  }

  void pushCompileContext(std::string& what) override {
    doing_here().compiling.push_back(what);
    doing->changed();
  }

  void popCompileContext() override {
    if (!doing_here().compiling.empty()) {
      doing->compiling.pop_back();
      doing->changed();
    }
  }

#if TONNAGE_TORCH >= 210
  void setUserMetadata(const std::string& text) override {
    doing_here().metadata = text;
    doing->changed();
  }

  std::string getUserMetadata() override {
    return doing == nullptr ? "" : doing->metadata;
  }
#endif

#if TONNAGE_TORCH >= 214
  bool supportsUserMetadata() override {
    return true;
  }
#endif

#if TONNAGE_TORCH >= 211
  SnapshotInfo snapshot(MempoolId_t pool, bool with_history) override {
#else
  SnapshotInfo snapshot(MempoolId_t pool) override {
    const bool with_history = true;
#endif
    SnapshotInfo info;
    // What the engine names is not to be forgotten, and its number given to another, before it is looked up.
    std::lock_guard<std::mutex> nothing_is_forgotten(forgetting_mutex_);
    for (DeviceIndex device = 0; device < c10::cuda::device_count(); ++device) {
      info.device_traces.emplace_back();
      // To open a GPU that nobody uses would take memory of it.
      if (!opened(device)) {
        continue;
      }
      Moment moment{};
      check(engine->moment(device, name_of(pool), with_history, &moment));
      add_segments(info, device, moment);
      auto& entries = info.device_traces.back();
      entries.reserve(moment.entry_count);
      for (uint64_t number = 0; number < moment.entry_count; ++number) {
        entries.push_back(entry_of(device, moment.entries[number]));
      }
      engine->forget_moment(&moment);
    }
    if (with_history) {
      std::lock_guard<std::mutex> guard(annotations_mutex_);
      info.external_annotations.assign(annotations_.begin(), annotations_.end());
    }
    info.config_metadata = settings();
    return info;
  }

  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
    std::lock_guard<std::mutex> guard(observers_mutex_);
    observers_.push_back(std::move(observer));
  }

#if TONNAGE_TORCH >= 212
  void attachOomRejectionObserver(OomRejectionObserver observer) override {
    std::lock_guard<std::mutex> guard(observers_mutex_);
    rejection_observers_.push_back(std::move(observer));
  }
#endif

  // Called under the engine's lock, so without one of ours: a list is never changed, and stays for good.
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    std::lock_guard<std::mutex> guard(trackers_mutex_);
    const auto* before = trackers_.load();
    auto* now = before == nullptr ? new Trackers() : new Trackers(*before);
    now->push_back(std::move(tracker));
    trackers_.store(now);
    check(engine->track(
        [](void* self, uint32_t device, const Entry* entry) {
          auto& allocator = *static_cast<Allocator*>(self);
          kept_from_throwing(
              [&]() -> uint8_t {
                const TraceEntry told = allocator.entry_of(static_cast<DeviceIndex>(device), *entry);
                for (const auto& tracker : *allocator.trackers_.load()) {
                  tracker(told);
                }
                return 0;
              },
              0);
        },
        this));
  }

  // Private pools.
  void beginAllocateToPool(
      DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    use(device);
    using Filter = std::function<bool(cudaStream_t)>;
    check(engine->begin_pool(
        device,
        name_of(pool),
        [](void* filter, uint64_t stream) -> uint8_t {
          return kept_from_throwing(
              [&]() -> uint8_t {
                return (*static_cast<Filter*>(filter))(reinterpret_cast<cudaStream_t>(pointer(stream)));
              },
              0);
        },
        new Filter(std::move(filter)),
        [](void* filter) { delete static_cast<Filter*>(filter); }));
    ++diversions_;
  }

  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    check(engine->end_pool(device, name_of(pool)));
    if (--diversions_ == 0) {
      captured_.forget();
    }
  }

  // Pools that go call setUseOnOOM, this and emptyCache, and graphs this: also in a fork, and while an allocator behind a MemPool works.
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    check_of_destructor(engine->release_pool(device, name_of(pool)));
  }

  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    uint64_t uses = 0;
    check(engine->pool_uses(device, name_of(pool), &uses));
    return static_cast<int>(uses);
  }

#if TONNAGE_TORCH >= 213
  void markCaptureBegin(DeviceIndex device) override {
    use(device);
    check(engine->begin_capture(device, []() -> uint8_t {
      return kept_from_throwing(
          []() -> uint8_t {
            return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
          },
          1);
    }));
  }

  void markCaptureEnd(DeviceIndex device) override {
    check(engine->end_capture(device));
  }
#endif

#if TONNAGE_TORCH >= 211
  using PoolAllocator = std::shared_ptr<CUDAAllocator>;
#else
  using PoolAllocator = CUDAAllocator*;
#endif

  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, PoolAllocator allocator) override {
    use(device);
    if (allocator == nullptr) {
      check(engine->use_pool(device, name_of(pool)));
      return;
    }
    TORCH_CHECK(
        !pages_,
        "a MemPool with an allocator of its own cannot be had under the policy `pages`, which moves pages of the device: "
        "tonnage.torch.install(policy=\"pytorch\")");
    // From 2.11 on it is kept until the last of the pool's memory is gone, as PyTorch's pools do. Before, PyTorch names it by a plain
    // pointer, and whoever made it must keep it as long.
    check(engine->use_pool_from(
        device,
        name_of(pool),
        [](void* allocator, uint64_t bytes) -> uint64_t {
          uint64_t address = NO_ANSWER;
          kept_from_throwing(
              [&]() -> uint8_t {
                address = address_of((*static_cast<PoolAllocator*>(allocator))->raw_alloc(bytes));
                return 0;
              },
              0);
          return address;
        },
        [](void* allocator, uint64_t address) {
          kept_from_throwing(
              [&]() -> uint8_t {
                (*static_cast<PoolAllocator*>(allocator))->raw_delete(pointer(address));
                return 0;
              },
              0);
        },
        new PoolAllocator(std::move(allocator)),
        [](void* allocator) { delete static_cast<PoolAllocator*>(allocator); }));
  }

#if TONNAGE_TORCH >= 211
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool on) override {
#else
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool) override {
    const bool on = true;
#endif
    const Status status = engine->set_use_on_oom(device, name_of(pool), on);
    if (on) {
      check(status);
    } else {
      check_of_destructor(status);
    }
  }

#if TONNAGE_TORCH >= 210
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
    check(engine->set_no_split(device, name_of(pool)));
  }
#endif

  bool checkPoolLiveAllocations(
      DeviceIndex device, MempoolId_t pool, const std::unordered_set<void*>& expected) override {
    std::vector<uint64_t> live;
    check(engine->live_in_pool(device, name_of(pool), push, &live));
    const auto is_expected = [&](uint64_t address) { return expected.count(pointer(address)) != 0; };
    return live.size() == expected.size() && std::all_of(live.begin(), live.end(), is_expected);
  }

  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
    void* state = nullptr;
    check(engine->pool_state(device, name_of(pool), &state));
    return std::make_shared<PoolState>(state);
  }

  CheckpointDelta setCheckpointPoolState(
      DeviceIndex device, std::shared_ptr<AllocatorState> state) override {
    auto* of_pool = dynamic_cast<PoolState*>(state.get());
    TORCH_CHECK(of_pool != nullptr, "a pool can go back to states of Tonnage's alone");
    struct Change {
      std::vector<uint64_t> freed, in_use;
    } change;
    const Noted note(*this, RecordContext::STATE);
    const Status status = engine->set_pool_state(
        device,
        of_pool->state,
        note.stack,
        [](void* change, uint64_t address) { static_cast<Change*>(change)->freed.push_back(address); },
        [](void* change, uint64_t address) { static_cast<Change*>(change)->in_use.push_back(address); },
        &change);
    check(status);
    CheckpointDelta delta;
    for (const uint64_t address : change.freed) {
      delta.ptrs_freed.push_back(pointer(address));
    }
    for (const uint64_t address : change.in_use) {
      void* block = pointer(address);
      delta.dataptrs_allocd.emplace_back(block, block, &raw_free, c10::Device(c10::DeviceType::CUDA, device));
    }
    return delta;
  }

  // Several devices and processes.
  void enablePeerAccess(DeviceIndex device, DeviceIndex other) override {
    c10::DeviceGuard guard(c10::Device(c10::DeviceType::CUDA, device));
    const cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      C10_CUDA_CHECK(error);
    }
    // That is for segments; pages are mapped for devices by name.
    check(engine->share_pages(other, device));
  }

  cudaError_t memcpyAsync(
      void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream, bool /*peer*/)
      override {
    // Pages may be mapped for their own device alone, so that across devices the driver is told of both.
    if (to_device == from_device) {
      return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    }
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
  }

  ShareableHandle shareIpcHandle(void* block) override {
    void* begin = getBaseAllocation(block, nullptr);
    cudaIpcMemHandle_t handle;
    C10_CUDA_CHECK(cudaIpcGetMemHandle(&handle, begin));
    const auto offset = static_cast<char*>(block) - static_cast<char*>(begin);
    return ShareableHandle{offset, std::string(handle.reserved, sizeof handle.reserved)};
  }

  std::shared_ptr<void> getIpcDevPtr(std::string text) override {
    std::lock_guard<std::mutex> guard(ipc_mutex_);
    if (auto known = ipc_[text].lock()) {
      return known;
    }
    // PyTorch's own allocator puts a version and a kind before the driver's handle; it takes handles without, too.
    cudaIpcMemHandle_t handle;
    constexpr size_t SIZE = sizeof handle.reserved;
    const bool plain = text.size() == SIZE;
    const bool whole_segment = text.size() == SIZE + 2 && text[0] <= 2 && text[1] == 'c';
    TORCH_CHECK(
        plain || whole_segment,
        "a process shares memory of expandable segments, which cannot be had under tonnage.torch.install(): let it share "
        "memory without expandable_segments");
    std::memcpy(handle.reserved, text.data() + (plain ? 0 : 2), SIZE);
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    void* begin = nullptr;
    C10_CUDA_CHECK(cudaIpcOpenMemHandle(&begin, handle, cudaIpcMemLazyEnablePeerAccess));
    std::shared_ptr<void> opened(begin, [this, text, device](void* begin) {
      c10::DeviceGuard current(c10::Device(c10::DeviceType::CUDA, device));
      std::lock_guard<std::mutex> guard(ipc_mutex_);
      C10_CUDA_CHECK_WARN(cudaIpcCloseMemHandle(begin));
      // Someone may have opened it anew since nobody had it any more.
      const auto found = ipc_.find(text);
      if (found != ipc_.end() && found->second.expired()) {
        ipc_.erase(found);
      }
    });
    ipc_[text] = opened;
    return opened;
  }

  bool is_used() const {
    return used_.load(std::memory_order_relaxed) != 0;
  }

 private:
  // While a graph may be captured: the driver's calls that the engine makes are none of its.
  using Uncaptured = std::optional<c10::cuda::CUDAStreamCaptureModeGuard>;

  Uncaptured uncaptured() const {
    if (C10_LIKELY(diversions_.load(std::memory_order_relaxed) == 0)) {
      return std::nullopt;
    }
    return Uncaptured(std::in_place, cudaStreamCaptureModeRelaxed);
  }

  // Where to look for a block first.
  uint32_t here() const {
    const uint64_t used = used_.load(std::memory_order_relaxed);
    if (C10_LIKELY((used & (used - 1)) == 0)) {
      return used == 0 ? 0 : static_cast<uint32_t>(__builtin_ctzll(used));
    }
    c10::DeviceIndex device = 0;
    return c10::cuda::GetDevice(&device) == cudaSuccess ? static_cast<uint32_t>(device) : 0;
  }

  static Stat stat_of(const Quantity& quantity) {
    Stat stat;
    stat.current = quantity.current;
    stat.peak = quantity.peak;
    stat.allocated = quantity.allocated;
    stat.freed = quantity.freed;
    return stat;
  }

#if TONNAGE_TORCH >= 213
  using OfPools = decltype(DeviceStats::reserved_bytes_by_private_pools);

  static void note_pool(void* pools, PoolName name, const Quantity* quantities) {
    StatArray& array = (*static_cast<OfPools*>(pools))[MempoolId_t(name.first, name.second)];
    array[static_cast<size_t>(StatType::AGGREGATE)] = stat_of(quantities[0]);
    array[static_cast<size_t>(StatType::SMALL_POOL)] = stat_of(quantities[1]);
    array[static_cast<size_t>(StatType::LARGE_POOL)] = stat_of(quantities[2]);
  }
#endif

  static void push(void* addresses, uint64_t address) {
    static_cast<std::vector<uint64_t>*>(addresses)->push_back(address);
  }

  // Otherwise memory goes past the engine, as PyTorch lets it be asked for to find faults.
  bool caches() const {
    return enabled_ && !uncached_;
  }

  static void* allocate_uncached(size_t bytes) {
    void* pointer = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&pointer, bytes));
    return pointer;
  }

  void use(DeviceIndex device) {
    if (C10_UNLIKELY(!opened(device))) {
      used_.fetch_or(uint64_t{1} << device);
    }
  }

  bool opened(DeviceIndex device) const {
    return (used_.load(std::memory_order_relaxed) >> device) & 1;
  }

  void* serve_current(DeviceIndex device, size_t bytes) {
    const auto stream = c10::cuda::getCurrentCUDAStream(device);
    return serve(device, bytes, stream.stream(), is_external(stream));
  }

  void* serve(DeviceIndex device, size_t bytes, cudaStream_t stream, bool external) {
    use(device);
    const Noted note(*this, RecordContext::STATE);
    const auto guard = uncaptured();
    if (C10_UNLIKELY(captured_.any())) {
      for (void* block : captured_.done_before(device, stream)) {
        check(engine->finish_captured(device, address_of(block)));
      }
    }
    uint64_t address = 0;
    Status status = engine->allocate_cached(device, bytes, number_of(stream), note.stack, &address);
    if (C10_UNLIKELY(status == NOT_CACHED && thrown == nullptr)) {
#if TONNAGE_TORCH < 210
      look_for_settings();
#endif
      const bool freed = run_callbacks();
      status = engine->allocate_uncached(device, bytes, number_of(stream), note.stack, freed, &address);
    }
    if (C10_UNLIKELY(thrown != nullptr)) {
      if (status == OK) {
        // The caller gets an exception, and no memory with it.
        engine->free(device, address, NO_STACK, nullptr, nullptr);
      }
      throw_what_was_kept();
    }
    if (C10_UNLIKELY(status == OUT_OF_MEMORY)) {
      fail(device);
    }
    check(status);
    if (C10_UNLIKELY(external)) {
      check(engine->hold_stream(device, address, number_of(stream)));
    }
    void* block = pointer(address);
    if (C10_UNLIKELY(captured_.any())) {
      captured_.handed_out(block);
    }
    if (const auto* python = c10::impl::GPUTrace::get_trace()) {
      (*python)->trace_gpu_memory_allocation(c10::DeviceType::CUDA, static_cast<uintptr_t>(address));
    }
    if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
      uint64_t taken = 0;
      check(engine->size_of(device, address, &taken));
      tell_profiler(block, static_cast<int64_t>(taken), device);
    }
    return block;
  }

  // A block that streams use in a capture is freed.
  void mark_captured_uses(void* block) {
    uint32_t device = 0;
    uint64_t own = 0;
    if (engine->stream_of(here(), address_of(block), &device, &own) == OK) {
      captured_.note_free(static_cast<int>(device), block, reinterpret_cast<cudaStream_t>(pointer(own)));
    }
  }

  // Streams of other devices that use a block are waited for before it is taken back.
  void wait_for_other_devices(void* block) {
    std::vector<c10::cuda::CUDAStream> streams;
    {
      std::lock_guard<std::mutex> guard(used_elsewhere_mutex_);
      const auto found = used_elsewhere_.find(block);
      if (found == used_elsewhere_.end()) {
        return;
      }
      streams = std::move(found->second);
      used_elsewhere_.erase(found);
      any_used_elsewhere_.store(!used_elsewhere_.empty());
    }
    for (const auto& stream : streams) {
      const c10::DeviceGuard there(stream.device());
      C10_CUDA_CHECK_WARN(cudaStreamSynchronize(stream.stream()));
    }
  }

#if TONNAGE_TORCH < 210
  // Nobody is told of settings in this release, so they are looked at before memory is obtained.
  void look_for_settings() {
    std::lock_guard<std::mutex> guard(settings_mutex_);
    const std::string now = CUDAAllocatorConfig::last_allocator_settings();
    if (now != settings_) {
      settings_ = now;
      check(engine->configure(now.c_str()));
      note_settings();
    }
  }
#endif

  // Without the engine's lock: they free tensors.
  static bool run_callbacks() {
    bool freed = false;
    for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
      freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    }
    return freed;
  }

  [[noreturn]] void fail(DeviceIndex device) {
    const Failure failure = engine->failure();
    const std::string text = failure.text;
    if (!failure.rejected) {
      c10::reportOutOfMemoryToProfiler(
          static_cast<int64_t>(failure.rounded),
          failure.allocated,
          failure.reserved,
          c10::Device(c10::DeviceType::CUDA, device));
    }
    std::vector<OutOfMemoryObserver> observers;
    {
      std::lock_guard<std::mutex> guard(observers_mutex_);
      observers = observers_;
    }
#if TONNAGE_TORCH >= 212
    std::vector<OomRejectionObserver> rejections;
    if (failure.rejected) {
      std::lock_guard<std::mutex> guard(observers_mutex_);
      rejections = rejection_observers_;
    }
    for (const auto& observer : rejections) {
      observer(device, failure.asked, failure.allocated, failure.total);
    }
#endif
    for (const auto& observer : observers) {
      observer(device, failure.asked, failure.total, failure.free);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, false, text);
  }

  // What is to be said of a call that begins.
  uint32_t context_for(RecordContext wanted_from) {
    if (C10_LIKELY(!recording_.load(std::memory_order_relaxed))) {
      return NO_STACK;
    }
    const RecordContext level = level_.load();
    const CreateContextFn recorder = recorder_.load();
    Context context;
    if (doing != nullptr) {
      context.words = doing->words;
    }
    if (level >= wanted_from && recorder != nullptr) {
      context.stack = recorder();
      context.in_entries = level >= RecordContext::ALLOC;
    } else if (context.words == nullptr) {
      return NO_STACK;
    }
    bool crowded = false;
    const uint32_t number = contexts_.keep(std::move(context), crowded);
    if (C10_UNLIKELY(crowded)) {
      forget_contexts();
    }
    return number;
  }

  std::shared_ptr<GatheredContext> stack_of(uint32_t number) {
    return contexts_.get(number).stack;
  }

  // What is said of a call, for as long as it takes, whatever it throws.
  struct Noted {
    Noted(Allocator& allocator, RecordContext wanted_from)
        : allocator(allocator), stack(allocator.context_for(wanted_from)) {}
    ~Noted() {
      if (C10_UNLIKELY(stack != NO_STACK)) {
        allocator.contexts_.done(stack);
      }
    }
    Noted(const Noted&) = delete;
    Allocator& allocator;
    const uint32_t stack;
  };

  void forget_contexts() {
    // Two at once would undo each other's marks.
    std::unique_lock<std::mutex> guard(forgetting_mutex_, std::try_to_lock);
    if (!guard) {
      return;
    }
    contexts_.begin_to_forget();
    std::vector<bool> used;
    for (DeviceIndex device = 0; device < c10::cuda::device_count(); ++device) {
      if (opened(device)) {
        const Status status = engine->stacks_in_use(
            device,
            [](void* used, uint32_t stack) {
              auto& numbers = *static_cast<std::vector<bool>*>(used);
              if (numbers.size() <= stack) {
                numbers.resize(stack + 1);
              }
              numbers[stack] = true;
            },
            &used);
        if (status != OK) {
          // Tensors that go come here too, and must not throw: all stay.
          return;
        }
      }
    }
    contexts_.forget_all_but(used);
  }

  TraceEntry entry_of(DeviceIndex device, const Entry& it) {
    const auto context = contexts_.get(it.stack);
    TraceEntry entry(
        static_cast<TraceEntry::Action>(it.action),
        device,
        it.address,
        it.size,
        stream_of(it.stream),
        MempoolId_t{it.pool.first, it.pool.second},
        0,
        context.in_entries ? context.stack : nullptr,
        context.words && !context.words->compile.empty() ? context.words->compile : "N/A"
#if TONNAGE_TORCH >= 210
        ,
        context.words ? context.words->metadata : ""
#endif
    );
    entry.time_.t_ = static_cast<time_t>(it.time_us);
    return entry;
  }

  void add_segments(SnapshotInfo& info, DeviceIndex device, const Moment& moment) {
    for (uint64_t number = 0; number < moment.segment_count; ++number) {
      const Segment& it = moment.segments[number];
      SegmentInfo& segment = info.segments.emplace_back();
      segment.device = device;
      tell_number(segment, it.number, 0);
      segment.address = it.address;
      segment.total_size = it.total;
      segment.requested_size = it.requested;
      segment.allocated_size = it.allocated;
      segment.active_size = it.active;
      segment.stream = stream_of(it.stream);
      segment.is_large = it.large;
      segment.is_expandable = it.expandable;
      segment.owner_private_pool_id = MempoolId_t{it.pool.first, it.pool.second};
      segment.context_when_allocated = stack_of(it.stack);
      for (uint64_t place = it.first_block; place < it.first_block + it.blocks; ++place) {
        const Block& from = moment.blocks[place];
        auto& block = segment.blocks.emplace_back();
        block.size = from.size;
        block.requested_size = from.requested;
        block.allocated = from.allocated;
        block.active = from.active;
        block.context_when_allocated = stack_of(from.stack);
      }
    }
  }

  AllocatorConfigInfo settings() {
    std::vector<std::string> lines;
    check(engine->settings(
        [](void* lines, const char* text, size_t length) {
          static_cast<std::vector<std::string>*>(lines)->emplace_back(text, length);
        },
        &lines));
    AllocatorConfigInfo info{};
    info.last_allocator_settings = lines.at(0);
    info.garbage_collection_threshold = std::stod(lines.at(1));
    info.max_split_size = std::stoull(lines.at(2));
    info.expandable_segments = lines.at(3) == "1";
    info.release_lock_on_malloc = lines.at(4) == "1";
    info.pinned_use_host_register = lines.at(5) == "1";
    info.pinned_num_register_threads = std::stoull(lines.at(6));
    info.graph_capture_record_stream_reuse = lines.at(7) == "1";
    for (size_t from = 0; from < lines.at(8).size();) {
      const size_t comma = std::min(lines[8].find(',', from), lines[8].size());
      info.roundup_power2_divisions.push_back(std::stoull(lines[8].substr(from, comma - from)));
      from = comma + 1;
    }
    tell_pinned(info, 0);
    return info;
  }

  // Only if one listens: the figures take the engine's lock.
  void tell_profiler(void* block, int64_t bytes, uint32_t device) {
    if (C10_LIKELY(!c10::memoryProfilingEnabled())) {
      return;
    }
    Quantity quantities[29];
    int64_t counts[7];
    check(engine->stats(device, quantities, counts));
    c10::reportMemoryUsageToProfiler(
        block,
        bytes,
        quantities[12].current,
        quantities[15].current,
        c10::Device(c10::DeviceType::CUDA, static_cast<DeviceIndex>(device)));
  }

  std::atomic<bool> initialized_{false};
  bool pages_ = false;
  std::atomic<bool> enabled_{true};
  const bool uncached_ = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr;
  // A bit for each device that was asked for memory; PyTorch has 64 at most.
  std::atomic<uint64_t> used_{0};
  std::atomic<CreateContextFn> recorder_{nullptr};
  std::atomic<RecordContext> level_{RecordContext::NEVER};
  std::atomic<bool> recording_{false};
  // Pools that requests are sent to now.
  std::atomic<int> diversions_{0};
  Contexts contexts_;
  std::mutex forgetting_mutex_;
  CapturedBlocks captured_;
  std::atomic<bool> reuses_captured_{false};
  // Blocks that streams of other devices use.
  std::atomic<bool> any_used_elsewhere_{false};
  std::mutex used_elsewhere_mutex_;
  std::unordered_map<void*, std::vector<c10::cuda::CUDAStream>> used_elsewhere_;
  std::mutex annotations_mutex_;
  std::deque<AnnotationEntry> annotations_;
  size_t most_annotations_ = 1;
  std::mutex observers_mutex_;
  std::vector<OutOfMemoryObserver> observers_;
#if TONNAGE_TORCH >= 212
  std::vector<OomRejectionObserver> rejection_observers_;
#endif
  using Trackers = std::vector<AllocatorTraceTracker>;
  std::mutex trackers_mutex_;
  std::atomic<const Trackers*> trackers_{nullptr};
#if TONNAGE_TORCH < 210
  std::mutex settings_mutex_;
  std::string settings_ = CUDAAllocatorConfig::last_allocator_settings();
#endif
  std::mutex ipc_mutex_;
  std::unordered_map<std::string, std::weak_ptr<void>> ipc_;
};

// Never destroyed: tensors outlive everything that could do it.
Allocator& instance() {
  static auto* const it = new Allocator();
  return *it;
}

void raw_free(void* pointer) {
  instance().take_back(pointer);
}

void free_uncached(void* pointer) {
  C10_CUDA_CHECK_WARN(cudaFree(pointer));
}

#if TONNAGE_TORCH >= 210
// Settings that are read from now on reach the engine, too.
void follow_settings() {
  using c10::CachingAllocator::AcceleratorAllocatorConfig;
#if TONNAGE_TORCH >= 211
  auto& hook = AcceleratorAllocatorConfig::getConfigParserHook();
  hook = [before = hook](const std::string& text) {
    if (before) {
      before(text);
    }
    check(engine->configure(text.c_str()));
    instance().note_settings();
  };
#else
  // What stands there cannot be asked for, but is known.
  const auto hook = [](const std::string& text) {
    CUDAAllocatorConfig::instance().parseArgs(text);
    check(engine->configure(text.c_str()));
    instance().note_settings();
  };
  AcceleratorAllocatorConfig::registerDeviceConfigParserHook(hook, {});
#endif
}
#endif

thread_local std::string said;

// The order of allocators that are named for a kind of device: PyTorch's own has 0, and 2.15 names it again when CUDA begins.
constexpr uint8_t ABOVE_ITS_OWN = 1;

} // namespace
} // namespace tonnage

extern "C" {

// What a function of the program's threw while memory was changed past this class, or nothing. It is reported by that, and forgotten.
const char* tonnage_thrown() {
  using namespace tonnage;
  try {
    throw_what_was_kept();
    return nullptr;
  } catch (const c10::Error& error) {
    said = error.what_without_backtrace();
  } catch (const std::exception& error) {
    said = error.what();
  } catch (...) {
    said = "a function of the program's failed while memory was changed";
  }
  return said.c_str();
}

// Puts the allocator into PyTorch's place for one. Says what is wrong, or nothing.
const char* tonnage_install(const tonnage::Interface* interface, const tonnage::Options* options) {
  using namespace tonnage;
  try {
    TORCH_CHECK(interface->version == VERSION, "the shim was built for another version of Tonnage");
    auto* const before = c10::cuda::CUDACachingAllocator::allocator.load();
    TORCH_CHECK(
        before == nullptr || !before->initialized(),
        "CUDA is in use already: call tonnage.torch.install() before the first tensor on a GPU, best right after the "
        "import");
    engine = interface;
    check(engine->open(options));
    TORCH_CHECK(
        pthread_atfork(nullptr, nullptr, [] { orphan.store(instance().is_used()); }) == 0, "no memory to watch for forks");
    instance().note_settings();
    instance().set_pages(options->policy != nullptr && std::strstr(options->policy, "pages") != nullptr);
    c10::cuda::CUDACachingAllocator::allocator.store(&instance());
    c10::SetAllocator(c10::DeviceType::CUDA, &instance(), ABOVE_ITS_OWN);
#if TONNAGE_TORCH >= 210
    follow_settings();
#endif
    return nullptr;
  } catch (const c10::Error& error) {
    said = error.what_without_backtrace();
  } catch (const std::exception& error) {
    said = error.what();
  }
  return said.c_str();
}

}
