#include "apps/warm_prompts.h"

#include <boost/json.hpp>
#include <limits>

#include "base/clock.h"
#include "base/log.h"
#include "base/mapped_file.h"

namespace espalier::apps {
namespace {

namespace json = boost::json;

Status read_ids(const json::value& value, std::vector<TokenId>& ids) {
  if (!value.is_array()) return invalid_argument("input_ids must be a list of token ids");
  for (const json::value& id : value.get_array()) {
    if (!id.is_int64() || id.get_int64() < 0 ||
        id.get_int64() > std::numeric_limits<TokenId>::max())
      return invalid_argument("input_ids must be a list of token ids");
    ids.push_back(static_cast<TokenId>(id.get_int64()));
  }
  return {};
}

Result<GenerateRequest> read_prompt(std::string_view line) {
  GenerateRequest request;
  request.sampling.max_new_tokens = 0;
  json::error_code failed;
  const json::value value = json::parse(line, failed);
  if (!failed && value.is_string()) {
    request.text = value.get_string();
  } else if (!failed && value.is_object()) {
    for (const auto& [name, member] : value.get_object()) {
      if (name == "text" && member.is_string()) {
        request.text = member.get_string();
      } else if (name == "extra_key" && member.is_string()) {
        request.extra_key = member.get_string();
      } else if (name == "input_ids") {
        ESP_RETURN_IF_ERROR(read_ids(member, request.input_ids));
      } else {
        return fail(invalid_argument(
            "'{}' is unknown or of the wrong type: give text or input_ids, and perhaps extra_key",
            std::string_view(name)));
      }
    }
  } else {
    return fail(invalid_argument("no text and no object in JSON"));
  }
  if (request.text.empty() == request.input_ids.empty())
    return fail(invalid_argument("give text or input_ids, one of them"));
  return request;
}

}  // namespace

Result<std::vector<GenerateRequest>> read_warm_prompts(const std::filesystem::path& path) {
  ESP_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  std::vector<GenerateRequest> prompts;
  size_t number = 0;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto prompt = read_prompt(line);
    if (!prompt)
      return fail(prompt.error().with_context(
          fmt::format("--warm-prompts {}, line {}", path.string(), number + 1)));
    prompts.push_back(*std::move(prompt));
  }
  return prompts;
}

void compute_warm_prompts(Engine& engine, std::vector<GenerateRequest> prompts) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  int64_t num_tokens = 0;
  size_t num_computed = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto result = engine.generate(std::move(prompts[i]));
    const Status status = result ? result->finish.status : result.error();
    if (!status.ok()) {
      log_warning("a warm prompt was not computed number={}: {}", i + 1, status.message());
      continue;
    }
    ++num_computed;
    num_tokens += result->stats.prompt_tokens;
  }
  log_info("warm prompts are computed prompts={} of={} tokens={} seconds={:.1f}", num_computed,
           prompts.size(), num_tokens, to_seconds(clock.now() - start));
}

}  // namespace espalier::apps
