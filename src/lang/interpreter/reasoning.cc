#include "lang/interpreter/reasoning.h"

namespace espalier::lang {
namespace {

struct Marks {
  std::string_view model_type, begin, end;
};
constexpr Marks kMarks[] = {
    {"deepseek-r1", "<think>", "</think>"},
    {"deepseek-v3", "<think>", "</think>"},
    {"qwen3", "<think>", "</think>"},
    {"qwen3-thinking", "<think>", "</think>"},
    {"glm45", "<think>", "</think>"},
    {"step3", "<think>", "</think>"},
    {"kimi", "\u25c1think\u25b7", "\u25c1/think\u25b7"},
};

std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

}  // namespace

Result<std::pair<std::string, std::string>> separate_reasoning_text(std::string_view text,
                                                                    std::string_view model_type) {
  std::string known;
  for (const Marks& marks : kMarks) {
    known += (known.empty() ? "" : ", ") + std::string(marks.model_type);
    if (marks.model_type != model_type) continue;
    const size_t end = text.find(marks.end);
    if (end == std::string_view::npos) return std::pair<std::string, std::string>{"", text};
    std::string_view reasoning = text.substr(0, end);
    const size_t begin = reasoning.find(marks.begin);
    if (begin != std::string_view::npos) reasoning.remove_prefix(begin + marks.begin.size());
    return std::pair{trimmed(reasoning), trimmed(text.substr(end + marks.end.size()))};
  }
  return fail(invalid_argument("how \"{}\" marks its reasoning is not known: use one of {}",
                               model_type, known));
}

}  // namespace espalier::lang
