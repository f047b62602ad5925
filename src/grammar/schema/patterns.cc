#include "grammar/schema/patterns.h"

#include <boost/json.hpp>

#include "grammar/automata/lexeme.h"
#include "grammar/automata/regular_algebra.h"
#include "grammar/frontends/regex.h"

namespace espalier::grammar {

namespace json = boost::json;

ExprId quoted(Ir& ir, std::string_view text) {
  return ir.literal(json::serialize(json::string(text)));
}

Result<ExprId> PatternCompiler::quoted_strings(const std::string& pattern, bool counted) {
  const auto key = std::pair(pattern, counted);
  if (const auto it = patterns_.find(key); it != patterns_.end()) return it->second;
  const RegexOptions options{.search = true,
                             .encode =
                                 [this, counted](Ir&, const std::vector<CodeRange>& r) {
                                   return counted
                                              ? ir_.sequence({ir_.tick(), serialised_char(ir_, r)})
                                              : serialised_char(ir_, r);
                                 },
                             .limits = limits_};
  auto body = parse_regex(ir_, pattern, options);
  if (!body) return fail(body.error().with_context("pattern"));
  const ExprId quote = ir_.literal("\"");
  const ExprId expr = counted ? ir_.sequence({quote, *body, ir_.enough(), quote})
                              : ir_.sequence({quote, *body, quote});
  patterns_.emplace(key, expr);
  return expr;
}

Result<ExprId> PatternCompiler::deterministic(ExprId expr) {
  if (const auto it = deterministic_.find(expr); it != deterministic_.end()) return it->second;
  ESP_ASSIGN_OR_RETURN(const ExprId made, canonical(ir_, expr, limits_));
  deterministic_.emplace(expr, made);
  return made;
}

Result<bool> PatternCompiler::matches(const std::string& pattern, const std::string& name) {
  ESP_ASSIGN_OR_RETURN(const ExprId written, quoted_strings(pattern));
  ESP_ASSIGN_OR_RETURN(const ExprId language, deterministic(written));
  ESP_ASSIGN_OR_RETURN(const ExprId both, intersection(ir_, quoted(ir_, name), language, limits_));
  return both != ir_.never();
}

}  // namespace espalier::grammar
