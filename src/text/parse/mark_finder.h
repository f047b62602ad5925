// Finds marks in a text that comes character by character. Internal to the folder.
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

  // The mark that `c` ends, if any; `text` gets what is certain to belong to none.
  std::optional<size_t> take(char c, std::string& text) {
    held_ += c;
    while (!held_.empty()) {
      bool may_grow = false;
      for (size_t i = 0; i < marks_.size(); ++i) {
        if (held_ == marks_[i]) {
          held_.clear();
          return i;
        }
        may_grow |= marks_[i].starts_with(held_);
      }
      if (may_grow) return std::nullopt;
      text += held_[0];
      held_.erase(0, 1);
    }
    return std::nullopt;
  }
  std::string flush() { return std::exchange(held_, {}); }

 private:
  const std::vector<std::string> marks_;
  std::string held_;
};

}  // namespace espalier
