// Branches of one prompt, appended to each other in the cache: what the frontend's
// concatenate-and-append becomes. Each branch was computed behind the common prefix without seeing
// the others; here copies of their keys and values are put behind each other, and nothing is
// computed.
//
//   prefix   at positions [0, P)        as computed
//   branch i at [P, P + length i)       as computed: each begins where the prefix ends
//   what follows, at P + all lengths on, sees all of them
//
// An approximation of the same tokens in one sequence: there a branch would see those before it, at
// positions behind theirs. Source: concatenate-and-append of SGLang's frontend ("parallel
// encoding").
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "seams/vocab_view.h"

namespace espalier {

struct JoinRequest {
  std::string extra_key;        // GenerateRequest::extra_key under which the branches were computed
  std::vector<TokenId> prefix;  // at least one token
  std::vector<std::vector<TokenId>> branches;  // two or more, none of them empty
};

// What requests bring to go on from the joined branches: ids that begin with these, and the key.
// The same branches of the same prefix have the same key, whoever joins them.
struct JoinedPrompt {
  std::string extra_key;
  std::vector<TokenId> input_ids;
};

using JoinDone = std::function<void(Result<JoinedPrompt>)>;

// kInvalidArgument for what has no two branches.
Status check_join(const JoinRequest& request);
// The joined tokens, and a key that says how they were computed.
JoinedPrompt joined_prompt(const JoinRequest& request);

}  // namespace espalier
