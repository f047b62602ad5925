#include "grammar/masks/lexeme_tails.h"

#include "base/rng.h"

namespace espalier::grammar {

size_t LexemeTails::Hash::operator()(const Key& key) const {
  return mix64(reinterpret_cast<uintptr_t>(key.masks) ^ mix64(key.after));
}

const LexemeTails::Found& LexemeTails::find(const LexemeMasks& masks, SetId after) {
  const auto [it, added] = found_.try_emplace({&masks, after});
  Found& found = it->second;
  if (!added) return found;
  found.whole_ends = after != EarleySets::kNeedsText;
  if (!found.whole_ends) {
    for (uint32_t t = 0; t < masks.tails.token_ids.size(); ++t) found.conditional.push_back(t);
    list_bytes_ += held_bytes(found.conditional);
    return found;
  }
  walk_.run(
      masks.tails, after, [&](uint32_t t) { found.allowed.push_back(t); },
      [&](const TokenRun& run) {
        found.allowed.insert(found.allowed.end(), run.whole.begin(), run.whole.end());
      },
      [&](uint32_t begin, uint32_t end) {
        for (uint32_t t = begin; t < end; ++t) found.conditional.push_back(t);
      });
  list_bytes_ += held_bytes(found.allowed) + held_bytes(found.conditional);
  return found;
}

void LexemeTails::clear() {
  found_.clear();
  list_bytes_ = 0;
}

}  // namespace espalier::grammar
