// A variable of a prompt state: a future that is filled or failed once, and the text that it will
// hold as far as it is written.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lang/interpreter/stream.h"

namespace espalier::lang {

// Thread-safe. Callbacks run on the thread that fills, after its locks are released.
class Variable {
 public:
  PromptStream::Read read();  // waits
  Result<MetaInfo> meta();    // waits; empty for what no call filled
  bool ready() const;
  // At once when it is filled or failed already.
  void when_ready(std::function<void()> callback);

  void append(std::string_view delta, std::optional<Progress> progress = {});
  // The first of the two counts; later ones do nothing.
  void fill(Content content, MetaInfo meta = {});
  void fail(Status why, Location where);

  // Waits for text beyond `offset`; false at the end.
  Result<bool> read_text(size_t offset, std::string& out);
  // Of the pieces that ended in (begin, end] of the text; none where the back end reported nothing.
  std::optional<Progress> progress(size_t begin, size_t end) const;

 private:
  void finish(std::unique_lock<std::mutex> lock);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::string partial_;
  std::vector<std::pair<size_t, Progress>> progress_;  // by the end of its piece
  Content content_;
  MetaInfo meta_;
  Status status_;
  Location where_;
  std::vector<std::function<void()>> callbacks_;
};
// `earlier` and what came after it as one.
Progress merged(const Progress& earlier, const Progress& later);
using VariablePtr = std::shared_ptr<Variable>;  // of a stream, those forked from it, and readers

}  // namespace espalier::lang
