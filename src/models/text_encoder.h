// Encoders of texts (BERT and its kin): a text becomes a vector, the scores of its classes, or a
// vector of each of its tokens. All rows of a text see each other, so a text is computed whole, in
// one step with others one behind the other, and nothing of it is kept.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "models/decoder_spec.h"
#include "models/model.h"
#include "models/text_head.h"
#include "seams/vocab_view.h"

namespace espalier {

struct EncoderText {
  std::span<const TokenId> ids;    // at least one, at most info().context_length
  std::span<const int32_t> types;  // of each token; empty: all are 0
};

// Where texts' rows begin among a step's, [texts + 1], and the rows that results are made of.
struct TextRows {
  std::vector<int32_t> begins;
  std::vector<int32_t> wanted;
};
TextRows rows_of(std::span<const EncoderText> texts, PoolingSpec::Kind kind);

// Not thread-safe: one call of encode() at a time.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  const ModelInfo& info() const { return info_; }
  const DecoderSpec& spec() const { return spec_; }
  // Of all texts of a step.
  virtual int32_t step_tokens_max() const = 0;

  // Of each text its vector, [info().pooled->size], or one for each token, one behind the other.
  // A text's result does not depend on the others. REQUIRES: ids of the vocabulary, and texts that
  // fit into a step together.
  Result<std::vector<std::vector<float>>> encode(std::span<const EncoderText> texts);

 protected:
  // pools_rows: run() does.
  TextEncoder(DecoderSpec spec, TextHead head, bool pools_rows = false);
  ModelInfo info_;  // describe_model()'s; the back end adds weight_bytes

 private:
  // The wanted rows behind the last norm and the projector, or with pools_rows, but where each
  // token has a vector, a pooled row of each text: [rows, columns] float32; valid until the next
  // call.
  virtual Result<std::span<const float>> run(std::span<const EncoderText> texts,
                                             const TextRows& rows) = 0;
  std::vector<float> finish(std::span<const float> rows) const;

  const DecoderSpec spec_;
  const TextHead head_;
  const bool pools_rows_;
};

// Whether a folder's model is one; false where there is no config.json that can be read.
bool is_text_encoder(const ModelLoadOptions& options);

// On the CPU. step_tokens_max: of a step; at least one text of the model's length always fits.
Result<std::unique_ptr<TextEncoder>> load_text_encoder(const ModelLoadOptions& options,
                                                       int32_t step_tokens_max);

}  // namespace espalier
