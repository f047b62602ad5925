// Free text with triggers: when a trigger has been written, a grammar takes over, or the text ends,
// or the trigger is forbidden altogether.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/ir.h"

namespace espalier::grammar {

struct TextTrigger {
  enum class After : uint8_t {
    kTextGoesOn,  // the text continues once `then` is matched
    kEnds,        // the text ends with `then`
    kForbidden,   // the text cannot contain the trigger
  };
  std::string text;  // not empty, valid UTF-8
  ExprId then = 0;
  After after = After::kTextGoesOn;
};

struct FreeTextOptions {
  bool may_end = true;  // whether the text may end outside of triggers; else only by kEnds
};

// Returns valid UTF-8 text with `triggers`, each of which takes over as soon as its last byte is
// written: the product of an Aho-Corasick automaton and the states of a UTF-8 character.
// kInvalidArgument names a trigger that is empty or not UTF-8.
Result<ExprId> free_text(Ir& ir, const std::vector<TextTrigger>& triggers,
                         const FreeTextOptions& options);

}  // namespace espalier::grammar
