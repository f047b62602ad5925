// The engine of an encoder of texts (BERT and its kin). All rows of a text see each other, so a
// text is computed whole in one step and nothing of it is kept: there are no pages, no prefixes and
// no slots, and a step is as many waiting texts as its tokens allow. To what is built on an engine
// it is one whose model makes vectors.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "models/text_encoder.h"

namespace espalier {

// Whether the model of `config` is one (is_text_encoder()).
bool is_text_engine(const EngineConfig& config);

// Loads the model of `config`. What such a model does not have (ranks, replicas, adapters, tiers
// ...) is refused, each by the setting's name.
Result<std::unique_ptr<Engine>> start_text_engine(const EngineConfig& config);

// The parts given by the caller; tests put encoders of their own here. config: effective.
// `tokenizer` may be null (skip_tokenizer_init).
struct TextEngineParts {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<WorkPool> pool;  // the encoder's; may be null
  std::unique_ptr<TextEncoder> encoder;
};
std::unique_ptr<Engine> make_text_engine(EngineConfig config, TextEngineParts parts);

}  // namespace espalier
