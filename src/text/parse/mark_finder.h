// Finds marks (fixed strings such as "<tool_call>") in a text that comes character by character.
// Internal to the folder. Not thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace espalier {

class MarkFinder {
 public:
  explicit MarkFinder(std::vector<std::string> marks) : marks_(std::move(marks)) {}

  // Returns the index of the mark that `c` completes, if any. Appends to `text` the characters that
  // are certain to belong to no mark.
  std::optional<size_t> take(char c, std::string& text) {
    pending_ += c;
    while (!pending_.empty()) {
      bool may_grow = false;
      for (size_t i = 0; i < marks_.size(); ++i) {
        if (pending_ == marks_[i]) {
          pending_.clear();
          return i;
        }
        may_grow |= marks_[i].starts_with(pending_);
      }
      if (may_grow) return std::nullopt;
      text += pending_[0];
      pending_.erase(0, 1);
    }
    return std::nullopt;
  }
  const std::string& mark(size_t index) const { return marks_[index]; }
  // The characters that could still have become a mark.
  std::string flush() { return std::exchange(pending_, {}); }

 private:
  const std::vector<std::string> marks_;
  std::string pending_;
};

}  // namespace espalier
