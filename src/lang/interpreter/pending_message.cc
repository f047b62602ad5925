#include "lang/interpreter/pending_message.h"

#include <utility>

namespace espalier::lang {
namespace {

std::string_view trim_left(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\n')) text.remove_prefix(1);
  return text;
}

}  // namespace

void PendingMessage::add_gen(Operation op, std::shared_ptr<const Gen> gen) {
  items_.push_back({.is_hole = true, .stops = gen->options.stop});
  gens_.push_back({std::move(op), std::move(gen)});
}

std::optional<std::vector<std::string>> PendingMessage::match(std::string_view answer) const {
  std::vector<TemplateItem> merged;  // constants that follow each other are one
  for (const TemplateItem& item : items_) {
    if (!item.is_hole && !merged.empty() && !merged.back().is_hole) {
      merged.back().text += item.text;
    } else {
      merged.push_back(item);
    }
  }
  // APIs return messages without the white space before them.
  if (!merged.front().is_hole) {
    merged.front().text = trim_left(merged.front().text);
    answer = trim_left(answer);
  }
  return match_template(merged, answer);
}

bool PendingMessage::may_retry() {
  if (++num_tries_ < kTriesMax) return true;
  num_tries_ = 0;
  return false;
}

void PendingMessage::clear() {
  items_.clear();
  gens_.clear();
  num_tries_ = 0;
}

void PendingMessage::fail(const Status& why, Location where) {
  for (const PendingGen& pending : gens_) fail_outputs(pending.op, why, where);
  clear();
}

}  // namespace espalier::lang
