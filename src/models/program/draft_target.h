// What a draft head on the CPU reads of the model that it drafts for.
#pragma once

#include <span>

#include "kernels/linear/op.h"
#include "models/program/cpu_context.h"

namespace espalier::program {

// Used between two forward passes, by the thread that runs them.
class DraftTarget {
 public:
  virtual ~DraftTarget() = default;
  // Of the last forward's tokens. REQUIRES: DecoderSpec::kept_states.
  virtual CpuView kept_states() const = 0;
  // Rows of the embedding.
  virtual void embed(std::span<const TokenId> ids, const CpuView& out) = 0;
  // The same object whatever weights replace it. Null where ranks have a part of it each.
  virtual const kernels::PackedMatrix* head_matrix() const = 0;
};

}  // namespace espalier::program
