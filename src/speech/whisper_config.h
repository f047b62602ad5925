// What a folder of the Whisper family states of its model: sizes from config.json, and the tokens
// and rules of decoding from generation_config.json, else from config.json and the tokenizer.
// Values; thread-safe to read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "seams/vocab_view.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier {

class JsonObject;

namespace speech {

struct LayersConfig {
  int32_t num_layers = 0, num_heads = 0, intermediate_size = 0;
};

// Sizes. A position of the encoder stands for two frames of the spectrogram.
struct WhisperSizes {
  std::string architecture;  // "WhisperForConditionalGeneration"
  std::string dtype_name;    // "float32": as the file states it; empty: it does not
  int32_t width = 0;         // of hidden states, in encoder and decoder
  LayersConfig encoder, decoder;
  int32_t vocab_size = 0;
  int32_t num_mels = 0;
  int32_t max_source_positions = 0;  // of the encoder's output
  int32_t max_target_positions = 0;  // of the decoder's tokens

  int32_t window_frames() const { return 2 * max_source_positions; }
  int32_t head_dim(const LayersConfig& layers) const { return width / layers.num_heads; }
};

struct LanguageToken {
  std::string code;  // "en"
  TokenId token = -1;
};

// Tokens and rules of decoding. A token of -1 is one that the vocabulary lacks.
struct WhisperTokens {
  TokenId start = -1;  // <|startoftranscript|>
  TokenId end = -1;    // <|endoftext|>; ids below it are text
  TokenId transcribe = -1, translate = -1;
  TokenId previous = -1;                         // <|startofprev|>, before a prompt
  TokenId no_speech = -1;                        // <|nospeech|>
  TokenId no_timestamps = -1;                    // the next ids are times, 0.02 s apart
  std::vector<LanguageToken> languages;          // empty: the model is of English alone
  std::vector<TokenId> suppressed;               // never generated
  std::vector<TokenId> suppressed_first;         // not as the first token of a window
  std::optional<int32_t> max_initial_timestamp;  // of a window's first time, in steps of 0.02 s

  bool multilingual() const { return !languages.empty(); }
  TokenId first_timestamp() const { return no_timestamps + 1; }
  bool is_timestamp(TokenId token) const { return token > no_timestamps; }
  // -1 where the model does not know it.
  TokenId language(std::string_view code) const;
};

struct WhisperConfig {
  WhisperSizes sizes;
  WhisperTokens tokens;
};

// Whether the folder's config.json says that its model is of this family; false where there is no
// such file or it is no JSON.
bool is_whisper(const std::filesystem::path& folder);

// Fails by the file and the field.
Result<WhisperSizes> read_whisper_sizes(const std::filesystem::path& folder);
Result<WhisperConfig> read_whisper_config(const std::filesystem::path& folder,
                                          const Tokenizer& tokenizer);

}  // namespace speech
}  // namespace espalier
