#include "text/regex/pcre.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/check.h"

namespace espalier {

namespace {

// Grown on demand up to its maximum; PCRE2's own default (32 KiB of the machine stack) is too small
// for long runs under alternatives.
constexpr size_t kJitStackBytesStart = 32 * 1024;
constexpr size_t kJitStackBytesMax = 8 * 1024 * 1024;

struct Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

std::string error_text(int code) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct PcreRegex::Impl {
  Owned<pcre2_code> code;
  Limits limits;
};

struct PcreRegex::Search::Impl {
  const pcre2_code* code;
  std::string_view text;
  Owned<pcre2_match_data> data;
  Owned<pcre2_match_context> context;
  Owned<pcre2_jit_stack> jit_stack;
};

PcreRegex::PcreRegex(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
PcreRegex::PcreRegex(PcreRegex&&) noexcept = default;
PcreRegex& PcreRegex::operator=(PcreRegex&&) noexcept = default;
PcreRegex::~PcreRegex() = default;

Result<PcreRegex> PcreRegex::compile(std::string_view pattern, Limits limits) {
  int code = 0;
  size_t offset = 0;
  Owned<pcre2_code> compiled(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, nullptr));
  if (compiled == nullptr) {
    return fail(invalid_argument("the regular expression '{}' is not understood at byte {}: {}",
                                 pattern, offset, error_text(code)));
  }
  // Without machine code (no JIT on this processor) matching falls back to the interpreter.
  pcre2_jit_compile(compiled.get(),
                    PCRE2_JIT_COMPLETE | (limits.growing ? PCRE2_JIT_PARTIAL_HARD : 0));
  auto impl = std::make_unique<Impl>();
  impl->code = std::move(compiled);
  impl->limits = limits;
  return PcreRegex(std::move(impl));
}

PcreRegex::Search::Search(const PcreRegex& regex, std::string_view text)
    : impl_(std::make_unique<Impl>()) {
  const Limits& limits = regex.impl_->limits;
  impl_->code = regex.impl_->code.get();
  impl_->text = text;
  impl_->data.reset(pcre2_match_data_create_from_pattern(impl_->code, nullptr));
  impl_->context.reset(pcre2_match_context_create(nullptr));
  impl_->jit_stack.reset(pcre2_jit_stack_create(kJitStackBytesStart, kJitStackBytesMax, nullptr));
  ESP_CHECK(impl_->data && impl_->context, "no memory for a match");
  pcre2_set_match_limit(impl_->context.get(), limits.match_steps_max);
  pcre2_set_heap_limit(impl_->context.get(), limits.heap_kib_max);
  pcre2_jit_stack_assign(impl_->context.get(), nullptr, impl_->jit_stack.get());
}
PcreRegex::Search::Search(Search&&) noexcept = default;
PcreRegex::Search::~Search() = default;

std::optional<PcreRegex::Match> PcreRegex::Search::find(size_t position) {
  const int rc =
      pcre2_match(impl_->code, reinterpret_cast<PCRE2_SPTR>(impl_->text.data()), impl_->text.size(),
                  position, PCRE2_NO_UTF_CHECK, impl_->data.get(), impl_->context.get());
  limit_hit_ |= rc < 0 && rc != PCRE2_ERROR_NOMATCH;
  if (rc < 0) return std::nullopt;
  const size_t* offsets = pcre2_get_ovector_pointer(impl_->data.get());
  // \K in a lookahead can move the start behind the end; such a match is ignored.
  if (offsets[0] > offsets[1] || offsets[0] < position) return std::nullopt;
  return Match{offsets[0], offsets[1]};
}

// PCRE2_PARTIAL_HARD: a search that reads past the text's end stops there.
std::optional<PcreRegex::Search::Growing> PcreRegex::Search::find_growing(size_t position) {
  const int rc = pcre2_match(impl_->code, reinterpret_cast<PCRE2_SPTR>(impl_->text.data()),
                             impl_->text.size(), position, PCRE2_NO_UTF_CHECK | PCRE2_PARTIAL_HARD,
                             impl_->data.get(), impl_->context.get());
  limit_hit_ |= rc < 0 && rc != PCRE2_ERROR_NOMATCH && rc != PCRE2_ERROR_PARTIAL;
  if (rc < 0 && rc != PCRE2_ERROR_PARTIAL) return std::nullopt;
  const size_t* offsets = pcre2_get_ovector_pointer(impl_->data.get());
  if (offsets[0] > offsets[1] || offsets[0] < position) return std::nullopt;
  return Growing{{offsets[0], offsets[1]}, rc == PCRE2_ERROR_PARTIAL};
}

void PcreRegex::Search::set_text(std::string_view text) { impl_->text = text; }

std::vector<std::pair<std::string, std::string>> PcreRegex::Search::named_groups() const {
  uint32_t num_names = 0, entry_size = 0;
  PCRE2_SPTR table = nullptr;
  pcre2_pattern_info(impl_->code, PCRE2_INFO_NAMECOUNT, &num_names);
  pcre2_pattern_info(impl_->code, PCRE2_INFO_NAMEENTRYSIZE, &entry_size);
  pcre2_pattern_info(impl_->code, PCRE2_INFO_NAMETABLE, &table);
  const size_t* offsets = pcre2_get_ovector_pointer(impl_->data.get());
  std::vector<std::pair<std::string, std::string>> groups;
  for (uint32_t i = 0; i < num_names; ++i, table += entry_size) {  // two bytes of number, the name
    const size_t group = static_cast<size_t>(table[0]) << 8 | table[1];
    const size_t begin = offsets[2 * group], end = offsets[2 * group + 1];
    if (begin == PCRE2_UNSET || begin > end) continue;
    groups.emplace_back(reinterpret_cast<const char*>(table + 2),
                        impl_->text.substr(begin, end - begin));
  }
  return groups;
}

std::string escape_regex(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\^$.[]|()?*+{}-#").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

Result<std::string> oniguruma_to_pcre2(std::string_view pattern) {
  // What a class escape means, as the inside of a bracket.
  const auto inside = [](char c) -> std::string_view {
    if (c == 's' || c == 'S') return "\\t-\\r\\x{85}\\p{Z}";
    if (c == 'w' || c == 'W') return "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
    if (c == 'h' || c == 'H') return "0-9a-fA-F";
    return {};
  };
  std::string out;
  bool in_bracket = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const std::string_view next = pattern.substr(i + 1, 1);
    if (c == '\\' && !next.empty()) {
      ++i;
      const std::string_view set = inside(next.front());
      const bool negated = next.front() >= 'A' && next.front() <= 'Z';
      if (set.empty() || (negated && in_bracket)) {
        out += c;
        out += next;
      } else if (in_bracket) {
        out += set;
      } else {
        out += negated ? "[^" : "[";
        out += set;
        out += ']';
      }
      continue;
    }
    if (in_bracket && ((c == '[' && next != ":") || (c == '&' && next == "&"))) {
      return fail(error(StatusCode::kUnimplemented,
                        "the regular expression '{}' has a set within a set or an intersection at "
                        "byte {}, which is not supported",
                        pattern, i));
    }
    if (in_bracket && c == '[') {  // [:alpha:]
      const size_t end = pattern.find(":]", i + 2);
      if (end != std::string_view::npos) {
        out += pattern.substr(i, end + 2 - i);
        i = end + 1;
        continue;
      }
    }
    if (c == '[') in_bracket = true;
    if (c == ']') in_bracket = false;
    out += c;
  }
  return out;
}

}  // namespace espalier
