#include "lang/backends/chat_frames.h"

#include <algorithm>
#include <boost/json.hpp>

#include "text/template/chat_template.h"

namespace espalier::lang {
namespace {

size_t index_of(Role role) { return static_cast<size_t>(role); }

struct Known {
  std::string_view name;
  RoleFrame system, user, assistant;
  std::vector<std::string_view> paths;      // parts of a model's path, in lower case
  std::string_view user_after_system = {};  // where both are one message
};

const std::vector<Known>& known_frames() {
  static const std::vector<Known> all = {
      {"default", {"SYSTEM:", "\n", {}}, {"USER:", "\n", {}}, {"ASSISTANT:", "\n", {}}, {}},
      {"chatml",
       {"<|im_start|>system\n", "<|im_end|>\n", {}},
       {"<|im_start|>user\n", "<|im_end|>\n", {}},
       {"<|im_start|>assistant\n", "<|im_end|>\n", {"<|im_end|>"}},
       {"qwen", "chatml", "yi-"}},
      {"llama-3-instruct",
       {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>", {}},
       {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>", {}},
       {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", {"<|eot_id|>"}},
       {"llama-3", "llama3"}},
      {"llama-2-chat",
       {"[INST] <<SYS>>\n", "", {}},
       {"[INST] ", " [/INST]", {}},
       {"", " </s><s>", {}},
       {"llama-2", "llama2"},
       "\n<</SYS>>\n\n"},
      {"mistral",
       {"[SYSTEM_PROMPT] ", " [/SYSTEM_PROMPT]", {}},
       {"[INST] ", " [/INST]", {}},
       {"", " </s><s>", {}},
       {"mistral", "mixtral"}},
      {"vicuna", {"", " ", {}}, {"USER: ", " ", {}}, {"ASSISTANT: ", "</s>", {}}, {"vicuna"}},
      {"gemma-it",
       {"<start_of_turn>user\n", "", {}},
       {"<start_of_turn>user\n", "<end_of_turn>\n", {}},
       {"<start_of_turn>model\n", "<end_of_turn>\n", {"<end_of_turn>"}},
       {"gemma"},
       "\n\n"},
  };
  return all;
}

constexpr std::string_view kMark[] = {"@mark-one@", "@mark-two@", "@mark-three@", "@mark-four@"};

// Renders a template around marks: what stands before, between and behind them.
class Prober {
 public:
  Prober(ChatTemplate chat_template, std::string bos, std::string eos)
      : template_(std::move(chat_template)), bos_(std::move(bos)), eos_(std::move(eos)) {}

  // roles.size() + 1 texts.
  Result<std::vector<std::string>> around(const std::vector<Role>& roles, bool generation) const {
    boost::json::array messages;
    for (size_t i = 0; i < roles.size(); ++i)
      messages.push_back({{"role", role_name(roles[i])}, {"content", kMark[i]}});
    ESP_ASSIGN_OR_RETURN(std::string text,
                         template_.render({{"messages", std::move(messages)},
                                           {"bos_token", bos_},
                                           {"eos_token", eos_},
                                           {"add_generation_prompt", generation}}));
    // The tokenizer puts it there itself.
    if (!bos_.empty() && text.starts_with(bos_)) text.erase(0, bos_.size());
    std::vector<std::string> pieces;
    size_t begin = 0;
    for (size_t i = 0; i < roles.size(); ++i) {
      const size_t at = text.find(kMark[i], begin);
      if (at == std::string::npos) return fail(not_pieces());
      pieces.push_back(text.substr(begin, at - begin));
      begin = at + kMark[i].size();
    }
    pieces.push_back(text.substr(begin));
    return pieces;
  }

  static Status not_pieces() {
    return error(StatusCode::kUnimplemented,
                 "the chat template does not put messages behind each other, so its text cannot be "
                 "written a piece at a time");
  }

 private:
  ChatTemplate template_;
  std::string bos_, eos_;
};

Result<std::string> without_suffix(const std::string& text, const std::string& suffix) {
  if (!text.ends_with(suffix)) return fail(Prober::not_pieces());
  return text.substr(0, text.size() - suffix.size());
}
Result<std::string> without_prefix(const std::string& text, const std::string& prefix) {
  if (!text.starts_with(prefix)) return fail(Prober::not_pieces());
  return text.substr(prefix.size());
}

}  // namespace

ChatFrames::ChatFrames() {
  const Known& plain = known_frames().front();
  frames_[0] = plain.system;
  frames_[1] = plain.user;
  frames_[2] = plain.assistant;
}

Result<ChatFrames> ChatFrames::named(std::string_view name) {
  std::string names;
  for (const Known& known : known_frames()) {
    names += (names.empty() ? "" : ", ") + std::string(known.name);
    if (known.name != name) continue;
    ChatFrames frames;
    frames.frames_[0] = known.system;
    frames.frames_[1] = known.user;
    frames.frames_[2] = known.assistant;
    frames.user_after_system_ = known.user_after_system;
    frames.joins_system_ = !known.user_after_system.empty();
    return frames;
  }
  return fail(invalid_argument("no chat template is named \"{}\": use one of {}", name, names));
}

ChatFrames ChatFrames::for_model(std::string_view model_path) {
  std::string lower(model_path);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Known& known : known_frames())
    for (std::string_view part : known.paths)
      if (lower.find(part) != std::string::npos) return *named(known.name);
  return {};
}

ChatFrames ChatFrames::for_folder(const std::filesystem::path& folder, const Tokenizer* tokenizer) {
  auto source = find_chat_template(folder);
  if (!source && tokenizer != nullptr && !tokenizer->chat_template().empty())
    source = stored_chat_template(*tokenizer);
  if (!source) return for_model(folder.string());
  auto frames = from_template(source->source, source->bos_token, source->eos_token);
  return frames ? *frames : for_model(folder.string());
}

// With U, A, V, W as marks of user, assistant, user, assistant messages:
//   [opening + user.begin] U [user.end + assistant.begin] A [assistant.end + user.begin] V
//   [user.end + ...]
Result<ChatFrames> ChatFrames::from_template(const std::string& source,
                                             const std::string& bos_token,
                                             const std::string& eos_token) {
  ESP_ASSIGN_OR_RETURN(ChatTemplate compiled, ChatTemplate::compile(source));
  const Prober prober(std::move(compiled), bos_token, eos_token);
  constexpr Role kU = Role::kUser, kA = Role::kAssistant;
  ESP_ASSIGN_OR_RETURN(auto one, prober.around({kU}, false));
  ESP_ASSIGN_OR_RETURN(const auto asked, prober.around({kU}, true));
  ESP_ASSIGN_OR_RETURN(auto two, prober.around({kU, kA}, false));
  ESP_ASSIGN_OR_RETURN(auto four, prober.around({kU, kA, kU, kA}, false));
  // Some end a whole conversation, where no answer is asked for, with one more mark.
  if (!eos_token.empty() && !asked[1].starts_with(one[1]))
    for (auto* pieces : {&one, &two, &four})
      if (pieces->back().ends_with(eos_token))
        pieces->back().resize(pieces->back().size() - eos_token.size());
  ChatFrames frames;
  RoleFrame& user = frames.frames_[index_of(kU)];
  RoleFrame& assistant = frames.frames_[index_of(kA)];
  user.end = one[1];
  ESP_ASSIGN_OR_RETURN(assistant.begin, without_prefix(two[1], user.end));
  assistant.end = two[2];
  ESP_ASSIGN_OR_RETURN(user.begin, without_prefix(four[2], assistant.end));
  ESP_ASSIGN_OR_RETURN(const std::string generation, without_prefix(asked[1], user.end));
  // White space that stands before an answer in a history is the model's to write.
  const bool begins_alike = generation.starts_with(assistant.begin) ||
                            assistant.begin.find_first_not_of(" \n") == std::string::npos;
  if (!begins_alike || four[3] != two[1] || four[4] != two[2]) return fail(Prober::not_pieces());
  assistant.begin = generation;  // a template may open a turn for the model in a way of its own
  ESP_ASSIGN_OR_RETURN(frames.user_opening_, without_suffix(one[0], user.begin));
  // A system's message, for templates that take one.
  RoleFrame& system = frames.frames_[index_of(Role::kSystem)];
  system = {};
  if (const auto with_system = prober.around({Role::kSystem, kU}, false)) {
    system.begin = (*with_system)[0];
    const std::string& between = (*with_system)[1];
    frames.joins_system_ = !between.ends_with(user.begin);
    if (frames.joins_system_) {
      frames.user_after_system_ = between;
    } else {
      system.end = between.substr(0, between.size() - user.begin.size());
    }
  }
  const std::string& end = assistant.end;
  const size_t text_end = end.find_last_not_of(" \n");
  if (text_end != std::string::npos) assistant.stop = {end.substr(0, text_end + 1)};
  return frames;
}

RoleFrame ChatFrames::frame(Role role, std::optional<Role> previous) const {
  RoleFrame frame = frames_[index_of(role)];
  if (role != Role::kUser) return frame;
  if (!previous) frame.begin = user_opening_ + frame.begin;
  if (previous == Role::kSystem && joins_system_) frame.begin = user_after_system_;
  return frame;
}

}  // namespace espalier::lang
