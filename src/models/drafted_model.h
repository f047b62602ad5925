// A model on the CPU with what drafts for it, a head or a draft model: the model's layers are the
// first of the pages' layers, and those of what drafts the last.
#pragma once

#include <memory>

#include "models/draft_head.h"
#include "models/model.h"

namespace espalier {

// Both as one model, with a draft_head(). The head may borrow what the model owns. REQUIRES:
// reserve() before the first forward pass.
std::unique_ptr<Model> join_draft(std::unique_ptr<Model> target, std::unique_ptr<DraftHead> draft);

}  // namespace espalier
