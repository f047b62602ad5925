// The text around messages, for back ends that read text: from a model's own chat template, or one
// of a few well-known ones by name. Immutable; thread-safe.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "lang/backend.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier::lang {

class ChatFrames {
 public:
  // What SGLang's frontend uses where it knows nothing better: "USER:" and "ASSISTANT:".
  ChatFrames();

  // Reads the frames off a Jinja template by rendering it around marks. kUnimplemented for one
  // whose messages are not put behind each other (what a message looks like depends on later ones).
  // A template that writes the system's text into a later user's message is read as one that writes
  // it into the first.
  static Result<ChatFrames> from_template(const std::string& source, const std::string& bos_token,
                                          const std::string& eos_token);
  // "default", "chatml", "llama-2-chat", "llama-3-instruct", "mistral", "vicuna", "gemma-it".
  static Result<ChatFrames> named(std::string_view name);
  // By a model's path or name, as SGLang's frontend does.
  static ChatFrames for_model(std::string_view model_path);
  // The template of a model folder, else the one that its tokenizer brought (of a GGUF file, say);
  // for_model() of its path where there is none that can be read.
  static ChatFrames for_folder(const std::filesystem::path& folder,
                               const Tokenizer* tokenizer = nullptr);

  RoleFrame frame(Role role, std::optional<Role> previous) const;

 private:
  RoleFrame frames_[3];
  // Before a user's message that opens the conversation: a default system message.
  std::string user_opening_;
  // What stands before a user's message after a system's, where a template writes the two as one.
  std::string user_after_system_;
  bool joins_system_ = false;
};

}  // namespace espalier::lang
