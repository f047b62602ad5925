// What a prompt state has written: its text, messages and media, and what of it is cached. Internal
// to the room.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lang/interpreter/monitor.h"
#include "lang/interpreter/operation.h"

namespace espalier::lang {

// What was written so far, as a branch inherits it.
struct WrittenPrompt {
  std::string text;
  std::vector<Message> messages;  // those that have ended
  std::optional<Message> open;
  std::vector<Media> media;
  size_t cached_chars = 0;                     // of `text`, known to be in the back end's cache
  std::shared_ptr<const JoinedPrefix> joined;  // what `text` begins with; see Prompt
};

// Written by the thread that has the stream's turn (operation_queue.h), which alone may call the
// methods of the second half and written(). Other threads read through the first half. Every change
// is made under the stream's monitor, which outlives this object.
class PromptText {
 public:
  explicit PromptText(Monitor& monitor) : monitor_(monitor) {}

  // ---- any thread ----
  std::string all() const;
  std::vector<Message> messages() const;  // the open one included
  size_t size(const Monitor::Lock&) const { return written_.text.size(); }
  std::string from(size_t offset, const Monitor::Lock&) const {
    return written_.text.substr(offset);
  }
  BranchText since_fork() const;
  // Whether this branch was forked at the end of `parent` and only continues it with text, so that
  // its keys and values can stand behind the parent's.
  bool continues(const WrittenPrompt& parent) const;

  // ---- the thread that has the turn ----
  const WrittenPrompt& written() const { return written_; }
  std::optional<Role> previous_role() const;  // of the last message that has ended
  void start_from(WrittenPrompt written);     // of a branch: what its parent wrote
  void append(std::string_view text);
  void append(const Media& media);
  void append(const BranchText& branch);
  void rewind(size_t num_chars);  // drops streamed text beyond the first `num_chars`
  void begin_message(Role role);
  void end_message();  // REQUIRES an open message
  void set_cached();   // all of the text
  void set_joined(std::shared_ptr<const JoinedPrefix> joined);

 private:
  Monitor& monitor_;
  WrittenPrompt written_;
  size_t fork_chars_ = 0, fork_messages_ = 0;  // where this stream's own part begins
};

}  // namespace espalier::lang
