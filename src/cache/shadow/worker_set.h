// A set of worker slots: a few inline, many as a bitmap.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

namespace espalier {

// The index of a worker: a server of a router, or a replica of an engine. Slots of removed workers
// are used again.
using WorkerSlot = uint16_t;
inline constexpr size_t kMaxWorkers = 8192;

// 16 bytes as long as it holds at most kInline slots, which nearly every node of a prefix tree
// does: a conversation lives on one worker. Move-only. Not thread-safe.
class WorkerSet {
 public:
  static constexpr size_t kInline = 3;

  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }

  bool contains(WorkerSlot slot) const {
    if (bits_ != nullptr)
      return slot / 64u < bits_->size() && (word(slot) >> (slot % 64u) & 1) != 0;
    return std::find(few_.begin(), few_.begin() + count_, slot) != few_.begin() + count_;
  }

  // False where it was there.
  bool insert(WorkerSlot slot) {
    if (contains(slot)) return false;
    if (bits_ == nullptr && count_ < kInline) {
      few_[count_++] = slot;
      return true;
    }
    if (bits_ == nullptr) spill();
    if (slot / 64u >= bits_->size()) bits_->resize(slot / 64u + 1);
    (*bits_)[slot / 64u] |= uint64_t{1} << (slot % 64u);
    ++count_;
    return true;
  }

  // False where it was not there.
  bool erase(WorkerSlot slot) {
    if (!contains(slot)) return false;
    if (bits_ != nullptr) {
      (*bits_)[slot / 64u] &= ~(uint64_t{1} << (slot % 64u));
    } else {
      *std::find(few_.begin(), few_.begin() + count_, slot) = few_[count_ - 1u];
    }
    if (--count_ == 0) bits_.reset();
    return true;
  }

  template <typename Visit>
  void for_each(Visit&& visit) const {
    if (bits_ == nullptr) {
      for (size_t i = 0; i < count_; ++i) visit(few_[i]);
      return;
    }
    for (size_t i = 0; i < bits_->size(); ++i)
      for (uint64_t left = (*bits_)[i]; left != 0; left &= left - 1)
        visit(static_cast<WorkerSlot>(i * 64 + static_cast<size_t>(std::countr_zero(left))));
  }

  WorkerSet copy() const {
    WorkerSet out;
    out.few_ = few_;
    out.count_ = count_;
    if (bits_ != nullptr) out.bits_ = std::make_unique<std::vector<uint64_t>>(*bits_);
    return out;
  }

  size_t heap_bytes() const {
    return bits_ == nullptr ? 0 : sizeof(*bits_) + bits_->capacity() * sizeof(uint64_t);
  }

 private:
  uint64_t word(WorkerSlot slot) const { return (*bits_)[slot / 64u]; }
  void spill() {
    bits_ = std::make_unique<std::vector<uint64_t>>();
    for (const WorkerSlot slot : few_) {
      if (slot / 64u >= bits_->size()) bits_->resize(slot / 64u + 1);
      (*bits_)[slot / 64u] |= uint64_t{1} << (slot % 64u);
    }
  }

  std::unique_ptr<std::vector<uint64_t>> bits_;  // null: the slots are in few_
  std::array<WorkerSlot, kInline> few_{};
  uint16_t count_ = 0;
};
static_assert(sizeof(WorkerSet) == 16);

}  // namespace espalier
