// Earley's prediction and completion over a transition network: turns the items that a byte led to
// into an interned set, and keeps the limits on this work.
//
// Thread safety: one thread at a time, except for used_up() and num_bytes(). Ownership: borrows
// the network, the builder and the sets.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/automata/earley_sets.h"
#include "grammar/automata/transition_network.h"

namespace espalier::grammar {

// See the head of this file.
class EarleyClosure {
 public:
  // The text read so far, with its last byte apart. Checks of rules read it.
  struct Text {
    std::string_view before;
    uint8_t last = 0;
  };

  // `builder` builds rules of the network when a text first reaches them; without one the network
  // is complete.
  EarleyClosure(const Network& network, const GrammarLimits& limits, NetworkBuilder* builder,
                EarleySets& sets);

  // Interns a set by its kernel: the items that the last byte led to, with items that can only
  // return replaced by the items that they return to, so that the same position of a text is the
  // same set however it was reached. `needs_text` is set when a check reads the text; without a
  // text the result is then kNeedsText. Returns kDead also when a limit was reached. REQUIRES:
  // `kernel` is sorted and free of duplicates. The kernel is consumed.
  SetId intern(std::vector<EarleyItem>& kernel, const Text* text, bool& needs_text);
  // The same for a kernel whose items do not return. REQUIRES: it is not stored in the sets.
  SetId intern_settled(std::span<const EarleyItem> kernel);

  // Starts the work of one mask or token, whose items are bounded.
  void begin_call() { followed_ = 0; }
  // Counts items as processed in this call.
  void spend(size_t num_items) {
    followed_ += num_items;
    if (followed_ > (in_trial_ ? kItemsPerTrialMax : items_per_call_max_)) give_up();
  }
  // Starts work that no text needs yet. A limit that is reached before end_trial() ends this work
  // alone: exhausted() then holds until end_trial(), which returns whether none was reached.
  // REQUIRES: exhausted() does not hold, and no trial is under way.
  void begin_trial() {
    followed_ = 0;
    in_trial_ = true;
  }
  bool end_trial() {
    in_trial_ = false;
    return !std::exchange(trial_failed_, false);
  }
  // Returns whether some limit was reached.
  bool exhausted() const { return trial_failed_ || used_up(); }
  // The same without regard to trials. Any thread may call it.
  bool used_up() const { return exhausted_.load(std::memory_order_relaxed); }

  // Returns whether half of what a limit allows is used, in this call or by the grammar. Work that
  // masks do not need stops then.
  bool near_limit() const {
    return followed_ > items_per_call_max_ / 2 || num_bytes() > bytes_max_ / 2 ||
           sets_.size() > sets_max_ / 2;
  }

  ReturnStates& returns() { return returns_; }

  // The bytes that the sets, the return states and the scratch hold. Any thread may call it.
  size_t num_bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kItemsPerTrialMax = 300'000;  // some 30 ms

  void give_up() {
    if (in_trial_) {
      trial_failed_ = true;
    } else {
      exhausted_.store(true, std::memory_order_relaxed);
    }
  }
  void close(SetId id);
  void follow(const EarleyItem& item, SetId id, bool& accepting);
  void call(const Network::CallEdge& edge, const EarleyItem& item, SetId id);
  void complete(ReturnId return_id, SetId current, std::vector<EarleyItem>& out,
                bool& accepting) const;
  void add(const EarleyItem& item) {
    if (seen_.insert(item)) work_.push_back(item);
  }
  bool full();
  size_t update_num_bytes();
  bool passes(int32_t check, const Text& text);

  const Network& network_;
  NetworkBuilder* const builder_;
  EarleySets& sets_;
  const size_t sets_max_, items_max_, bytes_max_, items_per_call_max_;
  size_t followed_ = 0;  // items processed in this call
  bool in_trial_ = false, trial_failed_ = false;
  std::atomic<bool> exhausted_ = false;
  std::atomic<size_t> bytes_ = 0;
  ReturnStates returns_;
  // Scratch of one call.
  SeenItems seen_;
  std::vector<EarleyItem> settled_, returned_, work_, scanning_;
  std::vector<EarleyCall> calls_;
};

}  // namespace espalier::grammar
