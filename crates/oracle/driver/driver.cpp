// Asks the allocator of a released PyTorch: commands in, answers out.
//
// In:  on standard input, streams of commands, as `protocol.rs` writes them.
// Out: on standard output, for each stream one line per command, then the state at the end; as
//      `protocol.rs` reads them. A stream that kills its process ends with a line that says so.
//
// Each stream is played by a child of its own, forked before the library has any state: so every stream
// begins with a new allocator, and one that crashes takes nothing with it. Answers are written to memory
// that parent and child share, so that they outlive the child.
//
// What releases have and others lack is found out when this is compiled (`requires`), not by number: a new
// release compiles unless it takes away what all had.

#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#if __has_include(<c10/core/AllocatorConfig.h>)
#include <c10/core/AllocatorConfig.h>
#endif

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace allocator = c10::cuda::CUDACachingAllocator;
using Pool = std::pair<unsigned long long, unsigned long long>;

// Parts of the libraries that are exported and in no header we have.
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
namespace c10::cuda::detail {
void init_p2p_access_cache(int64_t devices);
}
#endif
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*has)(c10::DeviceIndex));
}

namespace c10::cuda::CUDACachingAllocator {
// Null where the release has none.
__attribute__((weak)) void setExpandableSegmentReserveClassForStream(cudaStream_t stream, const std::string& name);
}

extern "C" uint64_t fake_cudart_control(uint32_t operation, uint64_t a, uint64_t b);

namespace {

// The operations of the fake runtime's `control.rs`.
enum Control : uint32_t { RESET = 0, EVENTS = 1, EVENTS_OF = 2, CAPTURING = 3 };

// A stream that plays longer than this hangs.
constexpr unsigned SECONDS = 120;

// Answers, in memory shared with the parent.
class Answers {
 public:
  Answers()
      : length_(static_cast<size_t*>(map(sizeof(size_t)))), bytes_(static_cast<char*>(map(CAPACITY))) {}

  void clear() { *length_ = 0; }

  __attribute__((format(printf, 2, 3))) void print(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const size_t room = CAPACITY - *length_;
    const int written = vsnprintf(bytes_ + *length_, room, format, arguments);
    va_end(arguments);
    if (written < 0 || static_cast<size_t>(written) >= room) {
      _exit(3);
    }
    *length_ += static_cast<size_t>(written);
  }

  // Whole lines only: a child may have died inside one.
  void send() {
    size_t end = *length_;
    while (end > 0 && bytes_[end - 1] != '\n') {
      end--;
    }
    fwrite(bytes_, 1, end, stdout);
  }

 private:
  static constexpr size_t CAPACITY = size_t{1} << 30;

  static void* map(size_t size) {
    void* place = mmap(
        nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) {
      perror("memory for answers");
      exit(2);
    }
    return place;
  }

  size_t* length_;
  char* bytes_;
};

Answers answers;

// Message of an exception, on one line.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\t') {
      c = ' ';
    }
  }
  return text.substr(0, 400);
}

// Runs `body` and prints what became of it, without the end of the line. What `body` prints comes first.
template <class Body>
void attempt(Body body) {
  try {
    body();
    return;
  } catch (const c10::OutOfMemoryError&) {
    answers.print("oom");
  } catch (const c10::ValueError& error) {
    answers.print("!value %s", one_line(error.what_without_backtrace()).c_str());
  } catch (const c10::Error& error) {
    answers.print("!runtime %s", one_line(error.what_without_backtrace()).c_str());
  } catch (const std::invalid_argument& error) {
    answers.print("!value %s", one_line(error.what()).c_str());
  } catch (const std::out_of_range& error) {
    answers.print("!index %s", one_line(error.what()).c_str());
  } catch (const std::exception& error) {
    answers.print("!runtime %s", one_line(error.what()).c_str());
  }
}

// The figures that are compared after every command, in the order of `answer.rs`.
constexpr size_t FIGURES = 19;

template <class Stats>
std::array<int64_t, FIGURES> figures(const Stats& stats) {
  int64_t rejections = 0;
  if constexpr (requires { stats.num_oom_rejections; }) {
    rejections = stats.num_oom_rejections;
  }
  return {
      stats.reserved_bytes[0].current,
      stats.allocated_bytes[0].current,
      stats.active_bytes[0].current,
      stats.requested_bytes[0].current,
      stats.inactive_split_bytes[0].current,
      stats.inactive_split[0].current,
      stats.segment[0].current,
      stats.allocation[0].current,
      stats.active[0].current,
      stats.reserved_bytes[1].current,
      stats.reserved_bytes[2].current,
      stats.num_alloc_retries,
      stats.num_ooms,
      stats.num_sync_all_streams,
      stats.num_device_alloc,
      stats.num_device_free,
      stats.oversize_allocations.current,
      stats.oversize_segments.current,
      rejections,
  };
}

// Every statistic with its peak and sums.
template <class Stats>
void print_full(const Stats& stats) {
  const auto row = [](const char* name, const auto& stat) {
    answers.print(
        "full %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "\n",
        name,
        static_cast<int64_t>(stat.current),
        static_cast<int64_t>(stat.peak),
        static_cast<int64_t>(stat.allocated),
        static_cast<int64_t>(stat.freed));
  };
  const auto rows = [&row](const std::string& name, const auto& array) {
    row((name + ".all").c_str(), array[0]);
    row((name + ".small_pool").c_str(), array[1]);
    row((name + ".large_pool").c_str(), array[2]);
  };
  rows("allocation", stats.allocation);
  rows("segment", stats.segment);
  rows("active", stats.active);
  rows("inactive_split", stats.inactive_split);
  rows("allocated_bytes", stats.allocated_bytes);
  rows("reserved_bytes", stats.reserved_bytes);
  rows("active_bytes", stats.active_bytes);
  rows("inactive_split_bytes", stats.inactive_split_bytes);
  rows("requested_bytes", stats.requested_bytes);
  row("oversize_allocations", stats.oversize_allocations);
  row("oversize_segments", stats.oversize_segments);
  answers.print("max_split %" PRId64 "\n", static_cast<int64_t>(stats.max_split_size));
  if constexpr (requires { stats.reserved_bytes_by_private_pools; }) {
    for (const auto& [pool, array] : stats.reserved_bytes_by_private_pools) {
      const std::string name = "reserved_bytes_by_private_pools." + std::to_string(pool.first) + "_" +
          std::to_string(pool.second);
      row((name + ".all").c_str(), array[0]);
    }
  }
}

// One line for each entry of the history but those of snapshots, which are not the allocator's doing.
template <class Snapshot>
void print_history(const Snapshot& snapshot) {
  for (const auto& entries : snapshot.device_traces) {
    for (const auto& entry : entries) {
      if (entry.action_ == entry.SNAPSHOT) {
        continue;
      }
      answers.print(
          "entry %d %zu %zu %zu %llu %llu\n",
          static_cast<int>(entry.action_),
          static_cast<size_t>(entry.addr_),
          static_cast<size_t>(entry.size_),
          reinterpret_cast<size_t>(entry.stream_),
          static_cast<unsigned long long>(entry.mempool_.first),
          static_cast<unsigned long long>(entry.mempool_.second));
    }
  }
}

// One line for each segment, then the blocks in it.
template <class Snapshot>
void print_segments(const Snapshot& snapshot) {
  for (const auto& segment : snapshot.segments) {
    answers.print(
        "seg %zu %zu %d %zu %llu %llu %d %zu %zu %zu",
        segment.address,
        segment.total_size,
        segment.is_large ? 1 : 0,
        reinterpret_cast<size_t>(segment.stream),
        static_cast<unsigned long long>(segment.owner_private_pool_id.first),
        static_cast<unsigned long long>(segment.owner_private_pool_id.second),
        segment.is_expandable ? 1 : 0,
        segment.allocated_size,
        segment.active_size,
        segment.requested_size);
    for (const auto& block : segment.blocks) {
      const char state = block.allocated ? 'a' : block.active ? 'p' : 'f';
      answers.print(" %zu%c%zu", block.size, state, block.requested_size);
    }
    answers.print("\n");
  }
}

// The settings in force, of two classes: what a release does not have is left out.
template <class Config>
void print_settings() {
  const auto number = [](const char* name, size_t value) { answers.print(" %s=%zu", name, value); };
  answers.print("conf");
  number("max_split_size", Config::max_split_size());
  number("max_non_split_rounding", Config::max_non_split_rounding_size());
  number("expandable_segments", Config::expandable_segments());
  number("release_lock_on_cudamalloc", Config::release_lock_on_cudamalloc());
  number("pinned_use_cuda_host_register", Config::pinned_use_cuda_host_register());
  number("pinned_num_register_threads", Config::pinned_num_register_threads());
  number("pinned_use_background_threads", Config::pinned_use_background_threads());
  // Doubles by their bits.
  const auto fraction = [](const char* name, double value) {
    answers.print(" %s=%" PRIu64, name, std::bit_cast<uint64_t>(value));
  };
  fraction("garbage_collection_threshold", Config::garbage_collection_threshold());
  if constexpr (requires { Config::per_process_memory_fraction(); }) {
    fraction("per_process_memory_fraction", Config::per_process_memory_fraction());
  }
  if constexpr (requires { Config::graph_capture_record_stream_reuse(); }) {
    number("graph_capture_record_stream_reuse", Config::graph_capture_record_stream_reuse());
  }
  if constexpr (requires { Config::pinned_reserve_segment_size_mb(); }) {
    // In bytes: what does not fit is as good as infinite.
    const size_t megabytes = Config::pinned_reserve_segment_size_mb();
    number("pinned_reserve_segment_size", std::min(megabytes, SIZE_MAX >> 20) << 20);
  }
  if constexpr (requires { Config::throw_on_cudamalloc_oom(); }) {
    number("throw_on_cudamalloc_oom", Config::throw_on_cudamalloc_oom());
  }
  if constexpr (requires { Config::pinned_free_catch_all(); }) {
    number("pinned_free_catch_all", Config::pinned_free_catch_all());
  }
  // For no class and for one that strings name, on a device of 1 GiB; 0 stands for none.
  if constexpr (requires { Config::expandable_segments_reserve_decision("", 0); }) {
    for (const char* name : {"", "a"}) {
      const auto decision = Config::expandable_segments_reserve_decision(name, size_t{1} << 30);
      answers.print(" expandable_segments_reserve.%s=%zu", name, decision.reserve_bytes.value_or(0));
    }
  }
  answers.print(" roundup_power2_divisions=");
  for (const size_t divisions : Config::roundup_power2_divisions()) {
    answers.print("%zu,", divisions);
  }
}

template <class Config>
void print_common_settings() {
  if constexpr (requires { Config::large_segment_size(); }) {
    answers.print(" large_segment_size=%zu", static_cast<size_t>(Config::large_segment_size()));
  }
  if constexpr (requires { Config::pinned_max_round_threshold(); }) {
    answers.print(" pinned_max_round_threshold=%zu", Config::pinned_max_round_threshold());
    answers.print(" pinned_max_cached_size=%zu", Config::pinned_max_cached_size());
  }
}

void print_conf() {
  print_settings<allocator::CUDAAllocatorConfig>();
#if __has_include(<c10/core/AllocatorConfig.h>)
  print_common_settings<c10::CachingAllocator::AcceleratorAllocatorConfig>();
#endif
  answers.print("\tlast=%s\n", one_line(allocator::CUDAAllocatorConfig::last_allocator_settings()).c_str());
}

// Calls that not every release has; those that it lacks are answered by "absent".
template <class Allocator>
void set_no_split(Allocator* at, Pool pool) {
  if constexpr (requires { at->setNoSplit(0, pool); }) {
    at->setNoSplit(0, pool);
  } else {
    answers.print("absent");
  }
}

template <class Allocator>
void set_use_on_oom(Allocator* at, Pool pool, bool on) {
  if constexpr (requires { at->setUseOnOOM(0, pool, on); }) {
    at->setUseOnOOM(0, pool, on);
  } else if (on) {
    at->setUseOnOOM(0, pool);
  } else {
    answers.print("absent");
  }
}

template <class Allocator>
void record_history(Allocator* at) {
  constexpr size_t entries = size_t{1} << 24;
  constexpr auto never = allocator::RecordContext::NEVER;
  if constexpr (requires { at->recordHistory(true, nullptr, entries, never, false, {}); }) {
    at->recordHistory(true, nullptr, entries, never, false, {});
  } else {
    at->recordHistory(true, nullptr, entries, never, false);
  }
}

template <class Allocator>
void mark_capture(Allocator* at, bool begins) {
  if constexpr (requires { at->markCaptureBegin(0); }) {
    if (begins) {
      at->markCaptureBegin(0);
    } else {
      at->markCaptureEnd(0);
    }
  }
}

// One stream, in a process of its own.
class Player {
 public:
  // The line that begins a stream: total and capacity of the device.
  void start(const std::string& line, const std::vector<std::string>& environment) {
    std::istringstream words(line);
    std::string word;
    uint64_t total = 0;
    uint64_t capacity = 0;
    words >> word >> total >> capacity;
    fake_cudart_control(RESET, total, capacity);
    for (const std::string& variable : environment) {
      const size_t equals = variable.find('=');
      setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
    }
    attempt([] {
      c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
      // The settings are read when they are first asked for.
      allocator::CUDAAllocatorConfig::max_split_size();
      allocator::CUDAAllocatorConfig::expandable_segments();
      allocator::CUDAAllocatorConfig::release_lock_on_cudamalloc();
      allocator::init(1);
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
      c10::cuda::detail::init_p2p_access_cache(1);
#endif
      answers.print("ok");
      started_ = true;
    });
    answers.print("\n");
    if (!started_) {
      return;
    }
    print_conf();
  }

  // Whether the stream goes on.
  bool started() const { return started_; }

  void play(const std::string& line) {
    bool shows_conf = false;
    bool shows_segments = false;
    attempt([&] {
      char* at = const_cast<char*>(line.c_str()) + 1;
      const auto number = [&at] { return strtoull(at, &at, 10); };
      const auto pool = [&number] {
        const auto first = number();
        return Pool{first, number()};
      };
      switch (line[0]) {
        case 'a': {
          const auto id = number();
          const auto size = number();
          allocate(id, size, number());
          break;
        }
        case 'f':
          free(number());
          break;
        case 'r': {
          const auto id = number();
          record(id, number());
          break;
        }
        case 'e':
          allocator::emptyCache(pool());
          break;
        case 'd':
          fake_cudart_control(EVENTS, number(), 0);
          break;
        case 's':
          fake_cudart_control(EVENTS_OF, number(), 0);
          break;
        case 'b': {
          const Pool which = pool();
          allocator::beginAllocateToPool(0, which, filter(at));
          break;
        }
        case 'x':
          allocator::endAllocateToPool(0, pool());
          break;
        case 'R':
          allocator::releasePool(0, pool());
          break;
        case 'n':
          set_no_split(allocator::get(), pool());
          break;
        case 'o': {
          const Pool which = pool();
          set_use_on_oom(allocator::get(), which, number() != 0);
          break;
        }
        case 'u':
          allocator::createOrIncrefPool(0, pool());
          break;
        case 'C':
          mark_capture(allocator::get(), true);
          captures_.push_back(number() != 0);
          show_captures();
          break;
        case 'E':
          mark_capture(allocator::get(), false);
          if (!captures_.empty()) {
            captures_.pop_back();
          }
          show_captures();
          break;
        case 't': {
          const auto stream = number();
          tag(stream, *at == '\0' ? "" : at + 1);
          break;
        }
        case 'k':
          allocator::resetPeakStats(0);
          break;
        case 'z':
          allocator::resetAccumulatedStats(0);
          break;
        case 'H':
          record_history(allocator::get());
          break;
        case 'p':
          allocator::setMemoryFraction(strtod(at, nullptr), 0);
          break;
        case 'c':
          shows_conf = true;
          allocator::setAllocatorSettings(line.size() > 2 ? line.substr(2) : std::string());
          break;
        case '?':
          shows_segments = true;
          break;
        default:
          answers.print("unknown");
      }
    });
    answers.print("\t");
    print_changes();
    answers.print("\n");
    if (shows_conf) {
      print_conf();
    }
    if (shows_segments) {
      print_segments(allocator::snapshot());
    }
  }

  void finish() {
    print_full(allocator::getDeviceStats(0));
    const auto snapshot = allocator::snapshot();
    print_segments(snapshot);
    print_history(snapshot);
  }

 private:
  void allocate(uint64_t id, uint64_t size, uint64_t stream) {
    void* block = allocator::raw_alloc_with_stream(size, reinterpret_cast<cudaStream_t>(stream));
    blocks_[id] = block;
    answers.print("@%zu", reinterpret_cast<size_t>(block));
  }

  void free(uint64_t id) {
    const auto found = blocks_.find(id);
    if (found == blocks_.end()) {
      answers.print("-");
      return;
    }
    void* block = found->second;
    blocks_.erase(found);
    allocator::raw_delete(block);
  }

  void record(uint64_t id, uint64_t stream) {
    const auto found = blocks_.find(id);
    if (found == blocks_.end()) {
      answers.print("-");
      return;
    }
    // The block stays ours: the pointer must not free it.
    c10::DataPtr pointer(
        found->second, found->second, allocator::get()->raw_deleter(), c10::Device(c10::DeviceType::CUDA, 0));
    try {
      allocator::recordStream(
          pointer, c10::cuda::getStreamFromExternal(reinterpret_cast<cudaStream_t>(stream), 0));
    } catch (...) {
      pointer.release_context();
      throw;
    }
    pointer.release_context();
  }

  // Whether the current stream is part of any capture.
  void show_captures() const {
    const bool here = std::find(captures_.begin(), captures_.end(), true) != captures_.end();
    fake_cudart_control(CAPTURING, here, 0);
  }

  static void tag(uint64_t stream, const char* name) {
    if (allocator::setExpandableSegmentReserveClassForStream != nullptr) {
      allocator::setExpandableSegmentReserveClassForStream(reinterpret_cast<cudaStream_t>(stream), name);
    } else {
      answers.print("absent");
    }
  }

  // All streams, or the one that is named.
  static std::function<bool(cudaStream_t)> filter(const char* at) {
    char* end = nullptr;
    const auto stream = strtoull(at, &end, 10);
    if (end == at) {
      return [](cudaStream_t) { return true; };
    }
    return [stream](cudaStream_t asked) { return reinterpret_cast<uint64_t>(asked) == stream; };
  }

  // The figures that are not what they were.
  void print_changes() {
    const auto now = figures(allocator::getDeviceStats(0));
    for (size_t i = 0; i < FIGURES; i++) {
      if (now[i] != before_[i]) {
        answers.print("%zu=%" PRId64 " ", i, now[i]);
      }
    }
    before_ = now;
  }

  static inline bool started_ = false;
  std::vector<bool> captures_;
  std::unordered_map<uint64_t, void*> blocks_;
  std::array<int64_t, FIGURES> before_{};
};

[[noreturn]] void play(const std::vector<std::string>& lines, const std::vector<std::string>& environment) {
  alarm(SECONDS);
  Player player;
  player.start(lines.front(), environment);
  if (player.started()) {
    for (size_t i = 1; i < lines.size(); i++) {
      player.play(lines[i]);
    }
    player.finish();
  }
  // Nothing is taken down: the process's memory goes with it.
  _exit(0);
}

void run(const std::vector<std::string>& lines, const std::vector<std::string>& environment) {
  answers.clear();
  const pid_t child = fork();
  if (child < 0) {
    perror("fork");
    exit(2);
  }
  if (child == 0) {
    play(lines, environment);
  }
  int status = 0;
  waitpid(child, &status, 0);
  answers.send();
  if (WIFSIGNALED(status)) {
    printf("died of signal %d\n", WTERMSIG(status));
  } else if (WEXITSTATUS(status) != 0) {
    printf("died with status %d\n", WEXITSTATUS(status));
  }
  printf("end\n");
  fflush(stdout);
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  std::vector<std::string> lines;
  std::vector<std::string> environment;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line == "end") {
      run(lines, environment);
      lines.clear();
      environment.clear();
    } else if (line.starts_with("env ")) {
      environment.push_back(line.substr(4));
    } else {
      lines.push_back(line);
    }
  }
  return 0;
}
