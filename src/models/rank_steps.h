// The parts of a step of ranks that have rows of their own (DecoderSpec::whole_attention), on the
// CPU: each rank's batch with its pages, what it knows of the others' rows, and the outputs of all
// as one.
//
// Not thread-safe, but for part() of different ranks while the step runs. begin() allocates nothing
// once it has seen the largest step.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"
#include "models/model.h"
#include "models/program/wanted_rows.h"
#include "models/stage_model.h"
#include "tensor/buffer.h"

namespace espalier {

class RankSteps {
 public:
  explicit RankSteps(int32_t num_ranks) : parts_(static_cast<size_t>(num_ranks)) {}
  // vocab_size: 0 of a model that makes vectors.
  Status reserve(int32_t max_entries, int32_t vocab_size);

  struct Part {
    const ForwardBatch* batch = nullptr;
    std::span<const TokenId> token_ids;
    KvView kv;  // of the rank's pages
    RankRows rows;
    int32_t first_entry = 0;  // of the rank's, in the step's batch
    ForwardOutput output;     // set by who runs the part
  };
  // REQUIRES: batch.ranks has a batch for each rank; `kv` has the pages of all, rank after rank.
  void begin(const ForwardBatch& batch, std::span<const TokenId> token_ids, const KvView& kv);
  Part& part(int32_t rank) { return parts_[static_cast<size_t>(rank)]; }

  // For the rank's forward: calls `sink` with the entry's index in the step's batch, one rank at a
  // time.
  InputLogitsSink sink_of(int32_t rank, const InputLogitsSink& sink);
  // The outputs of all parts, valid until the next begin().
  ForwardOutput output();

 private:
  void plan_rows();

  std::vector<Part> parts_;
  program::WantedRows wanted_;
  std::vector<int64_t> num_tokens_, num_wanted_;
  std::vector<int32_t> positions_, wanted_positions_;
  int32_t vocab_size_ = 0;
  Buffer sample_logits_;  // [samples, vocab]
  int64_t num_samples_ = 0;
  std::vector<float> pooled_rows_;
  std::mutex sink_mutex_;
};

}  // namespace espalier
