// Free text in which some strings mean something: where one of them has been written, a grammar
// takes over, or the text ends, or it may not be written at all.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/ir.h"

namespace espalier::grammar {

struct TextTrigger {
  enum class After : uint8_t {
    kTextGoesOn,  // once `then` is matched
    kEnds,        // with `then`
    kForbidden,   // the text cannot hold this string
  };
  std::string text;  // not empty, valid UTF-8
  ExprId then = 0;
  After after = After::kTextGoesOn;
  bool counts = true;  // as the one that FreeTextOptions::needs_trigger asks for; one that does not
                       // count cannot be written before one that does
};

struct FreeTextOptions {
  bool may_end = true;         // in the text, outside of any trigger; else only by kEnds
  bool needs_trigger = false;  // the text ends, either way, only after one
};

// Valid UTF-8 with `triggers`, each of which takes over as soon as its last byte is written. (An
// automaton of Aho and Corasick, times the states of a UTF-8 character.) kInvalidArgument names a
// trigger that is empty or no UTF-8.
Result<ExprId> free_text(Ir& ir, const std::vector<TextTrigger>& triggers,
                         const FreeTextOptions& options);

}  // namespace espalier::grammar
