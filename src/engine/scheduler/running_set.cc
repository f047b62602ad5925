#include "engine/scheduler/running_set.h"

#include <algorithm>

#include "base/check.h"

namespace espalier {

RunningSet::RunningSet(int32_t max_running) : slots_(static_cast<size_t>(max_running), nullptr) {
  ESP_CHECK(max_running > 0);
  for (SlotId slot = max_running - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  running_.reserve(slots_.size());
}

void RunningSet::take_slot(Sequence& sequence) {
  ESP_CHECK(has_free_slot() && sequence.kv.slot < 0);
  sequence.kv.slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[static_cast<size_t>(sequence.kv.slot)] = &sequence;
  sequence.kv.needs_slot_init = true;
}

void RunningSet::start(Sequence& sequence) {
  sequence.state.move_to(SequenceState::kRunning);
  running_.push_back(&sequence);
}

void RunningSet::start_loading(Sequence& sequence) {
  sequence.state.move_to(SequenceState::kLoading);
  ++num_loading_;
}

void RunningSet::end_loading(Sequence& sequence) {
  ESP_CHECK(num_loading_ > 0 && &at(sequence.kv.slot) == &sequence);
  --num_loading_;
}

void RunningSet::leave(Sequence& sequence, SequenceState state) {
  const bool was_active =
      sequence.state == SequenceState::kRunning || sequence.state == SequenceState::kLoading;
  sequence.state.move_to(state);
  if (!was_active) return;
  ++num_leaving_;
  has_left_ = true;
}

void RunningSet::compact() {
  if (!has_left_) return;
  std::erase_if(running_, [](const Sequence* s) { return s->state != SequenceState::kRunning; });
  has_left_ = false;
}

void RunningSet::return_slot(Sequence& sequence) {
  ESP_CHECK(&at(sequence.kv.slot) == &sequence);
  --num_leaving_;
  slots_[static_cast<size_t>(sequence.kv.slot)] = nullptr;
  free_slots_.push_back(sequence.kv.slot);
  sequence.kv.slot = -1;
}

void RunningSet::check_invariants() const {
  ESP_CHECK(!has_left_, "sequences that have left are still listed");
  size_t num_used = 0, num_running = 0;
  int32_t num_leaving = 0, num_loading = 0;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const Sequence* s = slots_[slot];
    if (s == nullptr) continue;
    ++num_used;
    ESP_CHECK(s->kv.slot == static_cast<SlotId>(slot) && s->state != SequenceState::kWaiting);
    num_loading += s->kv.loading_end > 0 ? 1 : 0;
    num_running += s->state == SequenceState::kRunning ? 1 : 0;
    num_leaving +=
        s->state == SequenceState::kPaused || s->state == SequenceState::kFinished ? 1 : 0;
  }
  ESP_CHECK(num_running == running_.size() && num_leaving == num_leaving_);
  ESP_CHECK(num_loading == num_loading_);
  for (const Sequence* s : running_) ESP_CHECK(&at(s->kv.slot) == s);
  ESP_CHECK(num_used + free_slots_.size() == slots_.size());
  for (const SlotId slot : free_slots_)
    ESP_CHECK(slots_[static_cast<size_t>(slot)] == nullptr, "slot {} is free and owned", slot);
}

}  // namespace espalier
