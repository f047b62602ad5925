// The table of request fields: its rows name members, and docs/request_fields.md shows it.
#include "seams/request_fields.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "base/status.h"
#include "engine/requests/request.h"
#include "seams/sampling.h"

namespace espalier {
namespace {

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(int32_t value) { return fmt::format("{}", value); }
std::string text_of(double value) { return fmt::format("{}", value); }
template <typename T>
std::string text_of(const T&) {
  return "none";
}

// The default: the row's, else the initialiser of the member.
std::string default_of(const auto& field) {
  if (!field.absent.empty()) return std::string(field.absent);
  if constexpr (HasField<decltype(field.param), SamplingValues>)
    return text_of(static_cast<double>(field.param(*std::make_unique<SamplingValues>())));
  else if constexpr (HasField<decltype(field.param), HistoryValues>)
    return fmt::format("{}", field.param(*std::make_unique<HistoryValues>()));
  else
    return text_of(field.param(*std::make_unique<SamplingParams>()));
}

std::string type_of(const std::optional<float>&) { return "number"; }
std::string type_of(const std::optional<int32_t>&) { return "integer"; }
std::string type_of(const std::optional<uint64_t>&) { return "integer"; }
std::string type_of(const std::optional<std::string>&) { return "string"; }
std::string type_of(const std::optional<EarlyStopping>&) { return "boolean or \"never\""; }
std::string type_of(int32_t) { return "integer"; }
std::string type_of(bool) { return "boolean"; }
std::string type_of(const std::vector<std::string>&) { return "string or list of strings"; }
std::string type_of(const std::vector<TokenId>&) { return "list of integers"; }
std::string type_of(const std::map<TokenId, float>&) { return "object"; }

// The fields about log-probabilities; defaults are GenerateRequest's, where it has the field.
std::string logprobs_markdown() {
  std::string out =
      "\n## Log-probabilities\n\n"
      "Members of `/generate`'s body beside `sampling_params`, one for the call or a list with one "
      "for each\nprompt, and arguments of a gen. The OpenAI dialects have `logprobs` and "
      "`top_logprobs` instead.\n\n"
      "| field | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
  for_each_logprob_field([&](const auto& field) {
    const GenerateRequest request;
    if constexpr (HasField<decltype(field.param), const GenerateRequest>)
      out +=
          fmt::format("| `{}` | {} | {} | {} | {} |\n", field.name, type_of(field.param(request)),
                      text_of(field.param(request)), field.range.allowed, field.doc);
    else  // the server's own
      out += fmt::format("| `{}` | boolean | false |  | {} |\n", field.name, field.doc);
  });
  return out;
}

std::string fields_markdown() {
  std::string out =
      "# Request fields\n\n"
      "Made from the tables in `src/seams/request_fields.h`; a test keeps this page current. Null "
      "is\n"
      "the default everywhere, unless a row says otherwise. A default of the model\n"
      "(generation_config.json) goes before the default named here. The frontend language and the\n"
      "OpenAI dialects use the second name where there is one. G: `sampling_params` of "
      "`/generate`;\n"
      "C: `/v1/completions`; M: `/v1/chat/completions`; F: a flag of the command, with hyphens.\n\n"
      "| field | type | where | default | allowed | meaning |\n|---|---|---|---|---|---|\n";
  for_each_request_field([&](const auto& field) {
    std::string name = fmt::format("`{}`", field.name);
    if (!field.openai.empty()) name += fmt::format(", `{}`", field.openai);
    std::string places;
    for (const auto& [place, letter] : {std::pair(kInGenerate, 'G'), std::pair(kInCompletions, 'C'),
                                        std::pair(kInChat, 'M'), std::pair(kInCommand, 'F')})
      if (field.in(place)) places += letter;
    const SamplingParams params;
    out += fmt::format("| {} | {} | {} | {} | {} | {} |\n", name, type_of(field.param(params)),
                       places, default_of(field), field.range.allowed, field.doc);
  });
  return out + logprobs_markdown();
}

TEST(RequestFields, PageIsCurrent) {
  const std::string path = "docs/request_fields.md";
  if (std::getenv("ESPALIER_WRITE_DOCS") != nullptr) std::ofstream(path) << fields_markdown();
  std::stringstream there;
  there << std::ifstream(path).rdbuf();
  EXPECT_EQ(there.str(), fields_markdown())
      << "make it anew: ESPALIER_WRITE_DOCS=1 build/release/sampling_test";
}

TEST(RequestFields, NamesAreUniqueAndDefaultsLieInTheirRanges) {
  std::set<std::string_view> names, openai_names;
  for_each_logprob_field([&](const auto& field) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_TRUE(openai_names.insert(field.openai_name()).second) << field.name;
  });
  for_each_request_field([&](const auto& field) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_TRUE(openai_names.insert(field.openai_name()).second) << field.name;
    EXPECT_FALSE(field.doc.empty()) << field.name;
    if constexpr (HasField<decltype(field.param), SamplingValues>) {
      SamplingValues values;
      EXPECT_TRUE(field.range.holds(static_cast<double>(field.param(values)))) << field.name;
    }
    if constexpr (HasField<decltype(field.param), HistoryValues>) {
      HistoryValues values;
      EXPECT_TRUE(field.range.holds(static_cast<double>(field.param(values)))) << field.name;
    }
  });
}

}  // namespace
}  // namespace espalier
