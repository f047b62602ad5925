#include "grammar/schema/string_matcher.h"

#include <utility>

#include "grammar/frontends/regex.h"
#include "grammar/frontends/regex_tree.h"

namespace espalier::grammar {
namespace {

constexpr size_t kPatternBytesMax = size_t{128} << 20;

}  // namespace

bool is_regex(std::string_view text) {
  const auto parsed = parse_regex_tree(text, true);
  // A feature that this parser does not support is a regular expression all the same.
  return parsed || parsed.error().message().find("not supported") != std::string::npos;
}

Result<const StringMatcher::Pattern*> StringMatcher::pattern_of(std::string_view pattern,
                                                                const GrammarLimits& limits) {
  const auto known = patterns_.find(std::string(pattern));
  if (known != patterns_.end()) return known->second.get();
  Ir ir;
  const auto body = parse_regex(ir, pattern, {.search = true, .encode = {}, .limits = limits});
  if (!body) return fail(body.error().with_context("pattern"));
  const RuleId root = ir.rules().add("pattern");
  ir.rules().set_body(root, *body);
  std::unique_ptr<Pattern> made;
  if (auto network = build_network(ir, root, limits)) {
    made = std::make_unique<Pattern>();
    made->network = std::move(*network);
    made->recogniser = std::make_unique<EarleyRecogniser>(made->network, limits);
    bytes_ += made->network.num_bytes();
    if (bytes_ > kPatternBytesMax) {
      return fail(error(StatusCode::kResourceExhausted,
                        "the schema's patterns need more than {} MiB where values are judged by "
                        "them; bound their repetitions more tightly",
                        kPatternBytesMax >> 20));
    }
  } else if (network.error().code() != StatusCode::kInvalidArgument) {
    return fail(network.error());
  }
  return patterns_.emplace(pattern, std::move(made)).first->second.get();
}

Status StringMatcher::add(std::string_view pattern, const GrammarLimits& limits) {
  const auto made = pattern_of(pattern, limits);
  return made ? Status() : made.error();
}

Result<bool> StringMatcher::matches(std::string_view pattern, std::string_view text,
                                    const GrammarLimits& limits) {
  ESP_ASSIGN_OR_RETURN(const Pattern* const found, pattern_of(pattern, limits));
  if (found == nullptr) return false;
  EarleyRecogniser& recogniser = *found->recogniser;
  SetId set = recogniser.start();
  for (char ch : text) set = recogniser.step(set, static_cast<uint8_t>(ch));
  return recogniser.accepting(set);
}

}  // namespace espalier::grammar
