// Chains of draft tokens on the device: from what a step has sampled to the rows that a draft head
// reads, and from the head's logits to its next tokens. The host knows neither before the step has
// ended, so counts of chains and lengths are read from device memory.
// Thread-safe; pointers are borrowed device memory; requirements of streams as
// kernels/cuda/stream.h.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

// A batch entry that a chain is drafted behind: the step sampled behind its known token, and behind
// each of its draft tokens, whose rows follow one another.
struct ChainStart {
  int32_t row = 0;           // of the step's samples: the one behind the known token
  int32_t num_rows = 0;      // it and its draft tokens'
  int32_t token = 0;         // the known token, among the step's
  int32_t position = 0;      // of the known token
  int32_t position_max = 0;  // the last position that its page table has
  int32_t page_begin = 0;    // of its page table
  int32_t length = 0;        // tokens to draft
};

// C = max_chains, which the grids cover; num_chains of them are there, and the others' entries
// have no tokens.
struct ChainArrays {
  const int32_t* num_chains = nullptr;  // [1]
  const ChainStart* starts = nullptr;   // [C]
  int32_t max_chains = 0;
  int32_t chain_max = 0;           // columns of `drafted`
  int32_t* drafted = nullptr;      // [C, chain_max]: each chain's tokens so far
  int32_t* counts = nullptr;       // [C]: how many
  int32_t* ids = nullptr;          // [C]: the last one
  int32_t* query_begin = nullptr;  // [C + 1]: as EntryArrays', of one token a chain
  int32_t* prefix_len = nullptr;   // [C]
  int32_t* page_begin = nullptr;   // [C]
};

struct BeginChainsArgs {
  ChainArrays chains;
  const int32_t* sampled = nullptr;   // [rows]: negative where a sample failed
  const int32_t* step_ids = nullptr;  // [tokens]
  // [tokens]: the token behind each of the step's; below 0: what was sampled in row -1 - it.
  const int32_t* next_ids = nullptr;
  int32_t tokens = 0;
  int32_t* ids = nullptr;     // [tokens]: the same, with what was sampled
  int32_t* wanted = nullptr;  // [C]: each chain's last accepted token among the step's
};
// Accepts draft tokens while they equal what was sampled before them, and starts a chain behind the
// last: without tokens, and with the entry for the first token to come.
Status begin_chains(const BeginChainsArgs& args, const LaunchOptions& launch);

struct ExtendChainsArgs {
  ChainArrays chains;
  const float* logits = nullptr;  // [C, logits_stride]
  int64_t logits_stride = 0;
  const int32_t* draft_ids = nullptr;  // [draft_vocab_size]: the token of each column
  int32_t draft_vocab_size = 0;
};
// Adds the most likely token to each chain that is shorter than its length; of equal logits the
// first, and NaN never unless all are. Entries then stand for the token that was added.
Status extend_chains(const ExtendChainsArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
