// A draft head beside a model (EAGLE-3): from what the model made of a text's tokens it predicts
// the tokens that come, which a step then verifies. Its keys and values lie in the model's pages,
// in layers behind the model's own. A draft model does the same from the tokens alone.
//
// Not thread-safe, as Model: used between two calls of its forward(), by the same thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "models/model.h"
#include "seams/forward_batch.h"
#include "seams/kv_view.h"

namespace espalier {

struct DraftHeadInfo {
  std::vector<int32_t> target_layers;  // in front of which the model's states are read
  int32_t draft_vocab_size = 0;        // tokens that it predicts among
  int64_t num_parameters = 0;
  int64_t weight_bytes = 0;
  int32_t context_length = 0;  // positions that it computes; 0: those of the model
  // False of a draft model, which reads tokens at their own positions, and last the one behind all
  // that the step has computed.
  bool reads_states = true;
};

class DraftHead {
 public:
  virtual ~DraftHead() = default;
  virtual const DraftHeadInfo& info() const = 0;

  // Behind Model::forward(): computes the keys and values of the batch's tokens, and of each entry
  // with `sample` the most likely token behind its last one. Returns these, in entry order, valid
  // until the next call.
  //   batch: the token at position p + 1 stands as the query token of position p; entries, pages
  //          and positions are those of the model's batch, or the first tokens of its entries.
  //          Without reads_states the token at position p stands there, and each entry with
  //          `sample` has one query token more
  //   rows:  [num_tokens] the row of each token in the model's batch; read with reads_states alone
  virtual std::span<const TokenId> draft(const ForwardBatch& batch, std::span<const int32_t> rows,
                                         const KvView& kv) = 0;

  // The tokens behind these. batch: entries of one query token each, the one that the call before
  // returned, all with `sample`; rows: [num_tokens] its index among those that were returned.
  virtual std::span<const TokenId> draft_next(const ForwardBatch& batch,
                                              std::span<const int32_t> rows, const KvView& kv) = 0;

  // As Model::reserve(), which the model that it drafts for has been given.
  virtual Status reserve(int32_t max_tokens, int32_t max_entries) = 0;
  virtual DraftKvInfo kv_info() const = 0;

  // [tokens returned, draft_vocab_size] of the last call, for tests.
  virtual std::span<const float> logits() const = 0;
};

}  // namespace espalier
