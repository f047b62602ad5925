// What a benchmark sends: conversations of one or more turns, drawn from a seed. The functions are
// pure; a workload is not changed once it is made, so the workers share it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/settings.h"
#include "base/status.h"

namespace espalier::apps {

struct WorkloadOptions {
  std::string preset;            // lengths of a named use; flags of lengths win over it
  std::string kind = "random";   // random, shared-prefix, chat
  int32_t num_prompts = 100;     // requests in all (chat: rounded up to whole conversations)
  int32_t input_len = 256;       // tokens of a prompt; chat: of each user turn
  int32_t output_len = 64;       // tokens of an answer
  double range_ratio = 1.0;      // lengths are uniform in [ratio * length, length]
  double scale = 1.0;            // multiplies every length
  int32_t num_groups = 8;        // shared-prefix: groups of prompts
  double shared_fraction = 0.9;  // shared-prefix: part of a prompt that its group shares
  int32_t turns = 4;             // chat: of each conversation
  uint64_t seed = 1;
};

void add_workload_settings(SettingTable& table, WorkloadOptions& options);

struct Turn {
  std::vector<int32_t> ids;  // new tokens of this turn; the first turn's hold the shared prefix
  int32_t output_len = 0;    // tokens
};

// Turns are sent one after the other; each prompt is the whole conversation so far.
struct Conversation {
  std::vector<Turn> turns;
};

// Applies the preset and the scale. kInvalidArgument names what cannot be.
Status resolve_workload(WorkloadOptions& options, const SettingTable& table);

// Deterministic from the seed. Ids are drawn from the middle of the vocabulary, away from where
// special tokens stand.
std::vector<Conversation> make_workload(const WorkloadOptions& options, int32_t vocab_size);

// Tokens of the longest prompt with its answer.
int32_t longest_request(const std::vector<Conversation>& workload);

// `ids` as English words, for servers that are asked in text: about a token a word.
std::string words_of(const std::vector<int32_t>& ids);

}  // namespace espalier::apps
