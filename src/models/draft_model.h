// A draft model: another, smaller decoder of the same vocabulary beside a model on the CPU, which
// drafts chains as a draft head does. It reads the text's tokens alone, nothing of the model's
// states. Its keys and values lie in the model's pages, in layers behind the model's own.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "models/draft_head.h"
#include "models/model.h"

namespace espalier {

// kUnimplemented where one of the two is of a kind that does not go with the other, by name.
// Vocabularies may differ in length, for they are padded; whether their tokens are the same is the
// caller's to check.
Status check_draft_model(const ModelInfo& target, const ModelInfo& draft);

// REQUIRES: check_draft_model() of the two.
std::unique_ptr<DraftHead> make_draft_model(std::unique_ptr<Model> model, const ModelInfo& target);

}  // namespace espalier
