// The vocabulary that a model's file (GGUF) contains, as the file states it: the interface between
// checkpoint, which reads files, and text, which makes tokenizers. Plain data; owns its contents.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace espalier {

// Fields that the file does not have keep their values here.
struct StoredVocabulary {
  std::string model;  // "llama" (SentencePiece BPE), "gpt2" (byte-level BPE), "t5" (Unigram)
  std::string pre_tokenizer;        // how a "gpt2" one cuts words, by name: "llama-bpe", "qwen2"
  std::vector<std::string> tokens;  // [id]
  std::vector<float> scores;        // [id]; may be empty
  std::vector<int32_t>
      types;  // [id]: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::vector<std::string> merges;  // "a b", in the order in which they were learned
  std::string charsmap;             // SentencePiece's precompiled one
  std::optional<int32_t> bos_id, eos_id, eot_id, unk_id;
  std::optional<int32_t> fim_prefix_id, fim_suffix_id, fim_middle_id;  // fill in the middle
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
  std::string chat_template;
};

}  // namespace espalier
