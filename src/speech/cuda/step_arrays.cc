#include "speech/cuda/step_arrays.h"

#include <algorithm>

namespace espalier::speech {

void SpeechStepArrays::lay_out(cuda::Arena& arena, int32_t tokens, int32_t slots) {
  ids = arena.take<int32_t>(tokens);
  wanted = arena.take<int32_t>(2 * slots);
  begins = arena.take<int32_t>(slots + 1);
  prefixes = arena.take<int32_t>(slots);
  pages = arena.take<int32_t>(slots);
  source_begins = arena.take<int32_t>(tokens + 1);
  source_prefixes = arena.take<int32_t>(tokens);
  source_pages = arena.take<int32_t>(tokens);
}

SpeechStepSize write_speech_step(std::span<const DecoderEntry> entries, const SlotPages& pages,
                                 int32_t source_positions, int32_t padded,
                                 const SpeechStepArrays& host) {
  SpeechStepSize size;
  for (const DecoderEntry& entry : entries) {
    const auto count = static_cast<int32_t>(entry.tokens.size());
    host.begins[size.entries] = size.tokens;
    host.prefixes[size.entries] = entry.num_cached;
    host.pages[size.entries] = entry.slot * pages.tokens;
    if (entry.logits_row >= 0) host.wanted[size.rows++] = size.tokens + entry.logits_row;
    host.wanted[size.rows++] = size.tokens + count - 1;
    for (const TokenId token : entry.tokens) {
      host.ids[size.tokens] = token;
      host.source_begins[size.tokens] = size.tokens;
      host.source_prefixes[size.tokens] = source_positions - 1;
      host.source_pages[size.tokens] = entry.slot * pages.source;
      ++size.tokens;
    }
    size.tokens_longest = std::max(size.tokens_longest, count);
    ++size.entries;
  }
  const int32_t tokens = size.tokens;
  host.begins[size.entries] = host.source_begins[tokens] = tokens;
  for (; size.entries < padded; ++size.entries, ++size.tokens) {
    host.begins[size.entries + 1] = host.source_begins[size.tokens + 1] = tokens;
    host.prefixes[size.entries] = host.source_prefixes[size.tokens] = 0;
    host.pages[size.entries] = host.source_pages[size.tokens] = 0;
    host.ids[size.tokens] = 0;
    host.wanted[size.rows++] = size.tokens;
  }
  return size;
}

}  // namespace espalier::speech
