// A chat message under API speculation: its texts and gens wait until the message ends, then one
// call writes all of it. Internal to the room.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lang/interpreter/operation.h"
#include "lang/interpreter/speculation.h"

namespace espalier::lang {

// Not thread-safe: belongs to the thread that has the stream's turn. Owns the operations of its
// gens.
class PendingMessage {
 public:
  struct PendingGen {
    Operation op;
    std::shared_ptr<const Gen> gen;  // shared with the expression
  };

  void add_text(std::string text) { items_.push_back({.text = std::move(text)}); }
  void add_gen(Operation op, std::shared_ptr<const Gen> gen);

  bool has_gens() const { return !gens_.empty(); }
  // Its only gen stands at its end, so the gen's own stops may end the call.
  bool ends_with_only_gen() const { return gens_.size() == 1 && items_.back().is_hole; }
  const std::vector<TemplateItem>& items() const { return items_; }  // a hole for each gen
  std::vector<PendingGen>& gens() { return gens_; }

  // The gens' texts where the answer reads as this message, white space before it aside.
  std::optional<std::vector<std::string>> match(std::string_view answer) const;
  // Counts an answer that did not match: false once kTriesMax have failed, which also starts over.
  bool may_retry();
  static constexpr int kTriesMax = 3;

  void clear();
  void fail(const Status& why, Location where);  // the variables of its gens; clears

 private:
  std::vector<TemplateItem> items_;
  std::vector<PendingGen> gens_;
  int num_tries_ = 0;
};

}  // namespace espalier::lang
