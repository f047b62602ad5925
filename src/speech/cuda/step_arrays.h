// What a step of the speech decoder on a GPU reads beside weights and pages. Plain values and pure
// functions; no call to a device.
#pragma once

#include <cstdint>
#include <span>

#include "speech/whisper_runner.h"
#include "tensor/cuda/memory.h"

namespace espalier::speech {

// Numbers of a step, or of the graph that runs it.
struct SpeechStepSize {
  int32_t entries = 0, tokens = 0;
  int32_t tokens_longest = 0;  // of an entry
  int32_t rows = 0;            // whose logits are wanted
};

// The same layout in pinned and in device memory.
struct SpeechStepArrays {
  int32_t* ids = nullptr;       // [tokens]
  int32_t* wanted = nullptr;    // [rows]: tokens
  int32_t* begins = nullptr;    // [entries + 1]: of tokens, as EntryArrays has them
  int32_t* prefixes = nullptr;  // [entries]
  int32_t* pages = nullptr;     // [entries]: an entry's first one in the table of pages
  // Of the encoder's rows each token is an entry of its own, which sees all of them.
  int32_t* source_begins = nullptr;    // [tokens + 1]
  int32_t* source_prefixes = nullptr;  // [tokens]
  int32_t* source_pages = nullptr;     // [tokens]

  void lay_out(cuda::Arena& arena, int32_t tokens, int32_t slots);
};

// How many pages of a table a slot has.
struct SlotPages {
  int32_t tokens = 0, source = 0;
};

// Writes the entries to `host`, which has room for them; behind them entries without tokens, up to
// `padded` of them (0: none), each with a token of number 0 that belongs to no entry.
SpeechStepSize write_speech_step(std::span<const DecoderEntry> entries, const SlotPages& pages,
                                 int32_t source_positions, int32_t padded,
                                 const SpeechStepArrays& host);

}  // namespace espalier::speech
