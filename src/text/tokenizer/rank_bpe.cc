#include "text/tokenizer/rank_bpe.h"

#include "text/unicode/utf8.h"

namespace espalier {

RankBpe::RankBpe(const TokenTable& tokens, RankBpeOptions options)
    : tokens_(tokens), options_(std::move(options)), cache_(std::make_unique<WordCache>()) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_ids_[byte] = tokens_.find_id({&c, 1});
  }
}

void RankBpe::encode_word(std::string_view word, std::vector<TokenId>& out) const {
  const bool cached = word.size() <= WordCache::kWordBytesMax;
  const uint64_t hash = cached ? WordCache::hash_of(word) : 0;
  if (cached && cache_->find(word, hash, out)) return;
  const size_t size_before = out.size();
  if (const TokenId whole = options_.whole_words_first ? tokens_.find_id(word) : -1; whole >= 0) {
    out.push_back(whole);
  } else {
    std::vector<MergeSymbol> symbols;
    symbols.reserve(word.size());
    for (uint32_t i = 0; i < word.size();) {
      const auto first = static_cast<uint8_t>(word[i]);
      const uint32_t size = options_.by_bytes || first < 0x80 ? 1 : decode_utf8(word, i).size;
      symbols.push_back({size == 1 ? byte_ids_[first] : tokens_.find_id(word.substr(i, size)), i});
      i += size;
    }
    const auto word_size = static_cast<uint32_t>(word.size());
    merge_symbols(symbols, word_size,
                  [&](const MergeSymbol& left, const MergeSymbol&, uint32_t end) -> MergeOf {
                    const TokenId id = tokens_.find_id(word.substr(left.begin, end - left.begin));
                    return id >= 0 ? MergeOf{options_.ranks[id], id} : MergeOf();
                  });
    for (size_t i = 0; i < symbols.size(); ++i) {
      if (symbols[i].id >= 0) {
        out.push_back(symbols[i].id);
        continue;
      }
      const uint32_t end = i + 1 < symbols.size() ? symbols[i + 1].begin : word_size;
      append_unknown(word.substr(symbols[i].begin, end - symbols[i].begin), out);
    }
  }
  if (cached) cache_->insert(word, hash, out.data() + size_before, out.size() - size_before);
}

void RankBpe::append_unknown(std::string_view characters, std::vector<TokenId>& out) const {
  if (options_.byte_fallback) {
    for (const char byte : characters) {
      out.push_back(options_.fallback_ids[static_cast<uint8_t>(byte)]);
    }
  } else if (options_.unk_id >= 0) {
    out.push_back(options_.unk_id);
  }
}

}  // namespace espalier
