// What PyTorch says of a call, its stack above all, which the engine names by number: kept here until it names them no more.
//
// The engine does not count who names one. Once there are twice as many as were in use the last time, it is asked
// which still are, and the others go. So keeping one costs a push, and forgetting it a share of a walk.

#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tonnage.h"

namespace tonnage {

struct Context {
  std::shared_ptr<c10::GatheredContext> stack;
  // Whether entries of the history show the stack, or blocks alone.
  bool in_entries = false;
  // What torch.compile was doing, and what the program says.
  std::string compile;
  std::string metadata;
};

class Contexts {
 public:

  // Keeps a context, at least until done() with the number.
  uint32_t keep(Context context) {
    std::lock_guard<std::mutex> guard(mutex_);
    uint32_t number;
    if (free_.empty()) {
      number = static_cast<uint32_t>(places_.size());
      places_.emplace_back();
    } else {
      number = free_.back();
      free_.pop_back();
    }
    places_[number] = Place{std::make_shared<const Context>(std::move(context)), true, false};
    return number;
  }

  // The call that the context was for is over: from here on the engine knows whether it is in use.
  void done(uint32_t number) {
    std::lock_guard<std::mutex> guard(mutex_);
    places_[number].busy = false;
  }

  bool crowded() {
    std::lock_guard<std::mutex> guard(mutex_);
    return places_.size() - free_.size() >= enough_;
  }

  // Before the engine is asked which are in use: of calls that are under way it may not know yet, so that what they named stays,
  // also if they are over by the time it has answered.
  void begin_to_forget() {
    std::lock_guard<std::mutex> guard(mutex_);
    for (Place& place : places_) {
      place.known_to_engine = !place.busy;
    }
  }

  // Forgets all that are not in use by these numbers, of those that the engine could know.
  void forget_all_but(const std::vector<bool>& used) {
    std::vector<std::shared_ptr<const Context>> gone;  // Dropped without the lock: that may run Python.
    {
      std::lock_guard<std::mutex> guard(mutex_);
      for (uint32_t number = 0; number < places_.size(); ++number) {
        Place& place = places_[number];
        if (place.context && place.known_to_engine && !(number < used.size() && used[number])) {
          gone.push_back(std::move(place.context));
          place.context = nullptr;
          free_.push_back(number);
        }
      }
      enough_ = std::max<size_t>(FEW, 2 * (places_.size() - free_.size()));
    }
  }

  std::shared_ptr<const Context> get(uint32_t number) {
    if (number == NO_STACK) {
      return nullptr;
    }
    std::lock_guard<std::mutex> guard(mutex_);
    return number < places_.size() ? places_[number].context : nullptr;
  }

 private:
  // Chosen: below it a walk is not worth its while.
  static constexpr size_t FEW = 1 << 16;

  struct Place {
    std::shared_ptr<const Context> context;
    bool busy = false;
    bool known_to_engine = false;
  };

  std::mutex mutex_;
  std::vector<Place> places_;
  std::vector<uint32_t> free_;
  size_t enough_ = FEW;
};

} // namespace tonnage
