// Languages of quoted strings that match the patterns of a schema.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// Caches its results. Borrows the Ir and the limits. Not thread-safe.
class PatternCompiler {
 public:
  PatternCompiler(Ir& ir, const GrammarLimits& limits) : ir_(ir), limits_(limits) {}

  // Returns the quoted strings that match; `counted`: with a tick for each character.
  Result<ExprId> quoted_strings(const std::string& pattern, bool counted = false);

  // Returns the minimal DFA of an expression that is intersected several times.
  Result<ExprId> deterministic(ExprId expr);

  // Returns whether a pattern of property names matches `name`.
  Result<bool> matches(const std::string& pattern, const std::string& name);

 private:
  Ir& ir_;
  const GrammarLimits& limits_;
  std::map<std::pair<std::string, bool>, ExprId> patterns_;
  std::map<ExprId, ExprId> deterministic_;
};

// Returns the text as a JSON string, as serialisers write it.
ExprId quoted(Ir& ir, std::string_view text);

}  // namespace espalier::grammar
