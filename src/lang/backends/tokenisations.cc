#include "lang/backends/tokenisations.h"

#include <algorithm>

namespace espalier::lang {

Result<std::vector<std::vector<TokenId>>> tokenisations(std::string_view text,
                                                        const VocabView& vocab, size_t max) {
  // Tokens by where they fit in the text, longest first.
  std::vector<std::vector<TokenId>> at(text.size());
  for (TokenId id = 0; id < vocab.vocab_size(); ++id) {
    const std::string_view bytes = vocab.token_bytes[static_cast<size_t>(id)];
    if (bytes.empty() || bytes.size() > text.size()) continue;
    if (std::binary_search(vocab.special_ids.begin(), vocab.special_ids.end(), id)) continue;
    for (size_t i = text.find(bytes); i != std::string_view::npos; i = text.find(bytes, i + 1))
      at[i].push_back(id);
  }
  const auto length = [&](TokenId id) { return vocab.token_bytes[static_cast<size_t>(id)].size(); };
  for (auto& ids : at)
    std::stable_sort(ids.begin(), ids.end(),
                     [&](TokenId a, TokenId b) { return length(a) > length(b); });

  // How many there are from each place on, before any is written.
  std::vector<size_t> count(text.size() + 1, 0);
  count[text.size()] = 1;
  for (size_t i = text.size(); i-- > 0;)
    for (const TokenId id : at[i]) count[i] = std::min(max + 1, count[i] + count[i + length(id)]);
  if (count[0] > max)
    return fail(error(StatusCode::kResourceExhausted,
                      "\"{}\" can be spelled in more than {} ways: give a shorter text, or use "
                      "another choices method",
                      text, max));

  std::vector<std::vector<TokenId>> all;
  std::vector<TokenId> path;
  const auto walk = [&](const auto& self, size_t i) -> void {
    if (i == text.size()) return all.push_back(path);
    for (const TokenId id : at[i]) {
      if (count[i + length(id)] == 0) continue;
      path.push_back(id);
      self(self, i + length(id));
      path.pop_back();
    }
  };
  if (!text.empty()) walk(walk, 0);
  return all;
}

}  // namespace espalier::lang
