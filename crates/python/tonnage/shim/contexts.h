// What PyTorch says of a call, its stack above all, which the engine names by number: kept here until it names them no more.
//
// The engine does not count who names one. Once there are twice as many as were in use the last time, it is asked
// which still are, and the others go. So keeping one costs a place in an array, and forgetting it a share of a walk.
//
// Places lie in chunks that never move: whoever has a number reaches its place without the lock.

#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tonnage.h"

namespace tonnage {

// What torch.compile was doing, and what the program says: of few calls.
struct Words {
  std::string compile;
  std::string metadata;
};

struct Context {
  std::shared_ptr<c10::GatheredContext> stack;
  std::shared_ptr<const Words> words;
  // Whether entries of the history show the stack, or blocks alone.
  bool in_entries = false;
};

class Contexts {
 public:
  // Keeps a context, at least until done() with the number; NO_STACK if there is no room for more. Says whether there are
  // so many that it is time to forget some.
  uint32_t keep(Context context, bool& crowded) {
    std::lock_guard<std::mutex> guard(mutex_);
    uint32_t number = size_;
    if (!free_.empty()) {
      number = free_.back();
      free_.pop_back();
    } else if (number == CHUNKS * CHUNK) {
      return NO_STACK;
    } else {
      auto& chunk = chunks_[number / CHUNK];
      if (chunk == nullptr) {
        chunk = std::make_unique<Chunk>();
      }
      ++size_;
    }
    Place& place = at(number);
    place.context = std::move(context);
    place.taken = true;
    // The engine is told of it by the call that begins now.
    place.known_to_engine = false;
    place.busy.store(true, std::memory_order_relaxed);
    crowded = size_ - free_.size() >= enough_;
    return number;
  }

  // The call that the context was for is over: from here on the engine knows whether it is in use.
  void done(uint32_t number) {
    at(number).busy.store(false, std::memory_order_release);
  }

  // Before the engine is asked which are in use: of calls that are under way it may not know yet, so that what they named stays,
  // also if they are over by the time it has answered.
  void begin_to_forget() {
    std::lock_guard<std::mutex> guard(mutex_);
    for (uint32_t number = 0; number < size_; ++number) {
      Place& place = at(number);
      place.known_to_engine = !place.busy.load(std::memory_order_acquire);
    }
  }

  // Forgets all that are not in use by these numbers, of those that the engine could know.
  void forget_all_but(const std::vector<bool>& used) {
    std::vector<Context> gone;  // Dropped without the lock: that may run Python.
    {
      std::lock_guard<std::mutex> guard(mutex_);
      for (uint32_t number = 0; number < size_; ++number) {
        Place& place = at(number);
        if (place.taken && place.known_to_engine && !(number < used.size() && used[number])) {
          gone.push_back(std::move(place.context));
          place.taken = false;
          free_.push_back(number);
        }
      }
      enough_ = std::max<size_t>(FEW, 2 * (size_ - free_.size()));
    }
  }

  Context get(uint32_t number) {
    std::lock_guard<std::mutex> guard(mutex_);
    return number < size_ ? at(number).context : Context{};
  }

 private:
  // Chosen: below it a walk is not worth its while.
  static constexpr size_t FEW = 1 << 16;

  static constexpr uint32_t CHUNK = 1 << 12;
  static constexpr uint32_t CHUNKS = 1 << 16;

  struct Place {
    Context context;
    std::atomic<bool> busy{false};
    bool taken = false;
    bool known_to_engine = false;
  };
  using Chunk = std::array<Place, CHUNK>;

  Place& at(uint32_t number) {
    return (*chunks_[number / CHUNK])[number % CHUNK];
  }

  std::mutex mutex_;
  // Half a MiB of pointers, of which few are ever looked at.
  const std::unique_ptr<std::unique_ptr<Chunk>[]> chunks_ = std::make_unique<std::unique_ptr<Chunk>[]>(CHUNKS);
  uint32_t size_ = 0;
  std::vector<uint32_t> free_;
  size_t enough_ = FEW;
};

} // namespace tonnage
