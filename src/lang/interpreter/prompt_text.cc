#include "lang/interpreter/prompt_text.h"

#include <utility>

namespace espalier::lang {

std::string PromptText::all() const {
  const Monitor::Lock lock = monitor_.lock();
  return written_.text;
}

std::vector<Message> PromptText::messages() const {
  const Monitor::Lock lock = monitor_.lock();
  std::vector<Message> all = written_.messages;
  if (written_.open) all.push_back(*written_.open);
  return all;
}

BranchText PromptText::since_fork() const {
  const Monitor::Lock lock = monitor_.lock();
  const auto begin = written_.messages.begin() + static_cast<std::ptrdiff_t>(fork_messages_);
  return {written_.text.substr(fork_chars_), {begin, written_.messages.end()}};
}

bool PromptText::continues(const WrittenPrompt& parent) const {
  const Monitor::Lock lock = monitor_.lock();
  return fork_chars_ == parent.text.size() && written_.media.empty() &&
         written_.joined == parent.joined && written_.text.starts_with(parent.text);
}

std::optional<Role> PromptText::previous_role() const {
  if (written_.messages.empty()) return std::nullopt;
  return written_.messages.back().role;
}

void PromptText::start_from(WrittenPrompt written) {
  const Monitor::Lock lock = monitor_.lock();
  written_ = std::move(written);
  fork_chars_ = written_.text.size();
  fork_messages_ = written_.messages.size();
}

void PromptText::append(std::string_view text) {
  {
    const Monitor::Lock lock = monitor_.lock();
    written_.text += text;
    if (written_.open) {
      std::vector<Part>& parts = written_.open->parts;
      if (parts.empty() || parts.back().media) parts.emplace_back();
      parts.back().text += text;
    }
  }
  monitor_.notify_all();
}

void PromptText::append(const Media& media) {
  const Monitor::Lock lock = monitor_.lock();
  written_.text += kMediaMark;
  written_.media.push_back(media);
  if (written_.open) written_.open->parts.push_back({.media = media});
}

// Messages already contain their text, so it is not added to an open message of this stream.
void PromptText::append(const BranchText& branch) {
  if (branch.messages.empty()) return append(std::string_view(branch.text));
  const Monitor::Lock lock = monitor_.lock();
  written_.text += branch.text;
  written_.messages.insert(written_.messages.end(), branch.messages.begin(), branch.messages.end());
}

void PromptText::rewind(size_t num_chars) {
  const Monitor::Lock lock = monitor_.lock();
  const size_t num_dropped = written_.text.size() - num_chars;
  written_.text.resize(num_chars);
  if (written_.open && num_dropped > 0) {
    std::string& part = written_.open->parts.back().text;
    part.resize(part.size() - num_dropped);
  }
}

void PromptText::begin_message(Role role) {
  const Monitor::Lock lock = monitor_.lock();
  written_.open = Message{role, {}};
}

void PromptText::end_message() {
  const Monitor::Lock lock = monitor_.lock();
  written_.messages.push_back(std::move(*written_.open));
  written_.open.reset();
}

void PromptText::set_cached() {
  const Monitor::Lock lock = monitor_.lock();
  written_.cached_chars = written_.text.size();
}

void PromptText::set_joined(std::shared_ptr<const JoinedPrefix> joined) {
  const Monitor::Lock lock = monitor_.lock();
  written_.joined = std::move(joined);
  written_.cached_chars = written_.text.size();
}

}  // namespace espalier::lang
