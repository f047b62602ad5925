// The tokens of prompts at a router: what a worker's tokenizer and chat template would make of a
// request's body.
#pragma once

#include <string>

#include "base/status.h"
#include "router/proxy.h"

namespace espalier::apps {

struct PromptTokenizerConfig {
  std::string path;           // of the workers' model or tokenizer; empty: prompts stay text
  std::string chat_template;  // as of a worker: a path or the text; empty: the model's own
};

// Text prompts of /generate and of completions, and messages of chats with their tools. Anything
// else, and what the template refuses, has no tokens here. Of a long prompt the first 64 KiB of
// text are encoded, so an I/O thread is held for milliseconds at most; what a cache holds of a
// prompt is decided by its begin. Such a prompt is not whole, so workers get its text.
//
// Null where the path is empty. A model without a chat template has tokens of text prompts alone.
Result<router::TokenizePrompt> make_prompt_tokenizer(const PromptTokenizerConfig& config);

}  // namespace espalier::apps
