// For tests: a store elsewhere, whose pages are known only once it was asked, and which answers
// when the test lets it.
#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/testing/flaky_store.h"

namespace espalier {

class AskedStore final : public PageStore {
 public:
  explicit AskedStore(FlakyStore::Options options) : pages_(options) {}

  // From now on look-ups are answered as they come, and those that wait are.
  void answer() {
    std::vector<Question> waiting;
    {
      const std::lock_guard lock(mutex_);
      answers_ = true;
      waiting.swap(waiting_);
    }
    for (const Question& question : waiting) {
      learn(question.first);
      question.second();
    }
  }
  size_t num_waiting() const {
    const std::lock_guard lock(mutex_);
    return waiting_.size();
  }

  std::string_view kind() const override { return "asked"; }
  int64_t page_bytes() const override { return pages_.page_bytes(); }
  void get(std::span<const PageName> names, std::shared_ptr<PageSink> sink) override {
    pages_.get(names, std::move(sink));
  }
  size_t put(std::span<const PageName> names, const FillPage& fill) override {
    return pages_.put(names, fill);
  }
  size_t num_leading(std::span<const PageName> names) const override {
    const std::lock_guard lock(mutex_);
    size_t count = 0;
    while (count < names.size() && known_.contains(names[count])) ++count;
    return count;
  }
  void look_up(std::span<const PageName> names, std::function<void()> done) override {
    {
      const std::lock_guard lock(mutex_);
      if (!answers_) {
        waiting_.push_back({{names.begin(), names.end()}, std::move(done)});
        return;
      }
    }
    learn({names.begin(), names.end()});
    done();
  }
  bool needs_look_up() const override { return true; }
  void erase(std::span<const PageName> names) override { pages_.erase(names); }
  void clear() override { pages_.clear(); }
  void flush() override { pages_.flush(); }
  PageStoreStats stats() const override { return pages_.stats(); }

 private:
  using Question = std::pair<std::vector<PageName>, std::function<void()>>;

  void learn(const std::vector<PageName>& names) {
    const size_t count = pages_.num_leading(names);
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < count; ++i) known_[names[i]] = true;
  }

  FlakyStore pages_;
  mutable std::mutex mutex_;
  bool answers_ = false;
  std::vector<Question> waiting_;
  std::map<PageName, bool> known_;
};

}  // namespace espalier
