#include "tiers/resp.h"

#include <algorithm>
#include <charconv>

namespace espalier {
namespace {

Status no_reply(std::string_view what) {
  return error(StatusCode::kDataLoss, "the answer is not RESP: {}", what);
}

std::optional<RespType> type_of(char mark) {
  switch (mark) {
    case '+':
      return RespType::kSimple;
    case '-':
      return RespType::kError;
    case ':':
      return RespType::kNumber;
    case '$':
      return RespType::kString;
    case '*':
      return RespType::kArray;
    default:
      return {};
  }
}

}  // namespace

Result<std::optional<RespLine>> parse_resp_line(std::string_view in) {
  if (in.empty()) return std::nullopt;
  const std::optional<RespType> type = type_of(in.front());
  if (!type) return fail(no_reply("its first byte has no meaning"));
  const size_t end = in.substr(0, kRespLineMax).find('\r');
  if (end == std::string_view::npos) {
    if (in.size() >= kRespLineMax) return fail(no_reply("its first line does not end"));
    return std::nullopt;
  }
  if (end + 1 == in.size()) return std::nullopt;
  if (in[end + 1] != '\n') return fail(no_reply("a line ends within"));
  RespLine line{.type = *type, .text = in.substr(1, end - 1), .size = end + 2};
  if (line.text.find('\n') != std::string_view::npos) return fail(no_reply("a line ends within"));
  if (*type == RespType::kSimple || *type == RespType::kError) return line;
  const char* const last = line.text.data() + line.text.size();
  const auto parsed = std::from_chars(line.text.data(), last, line.number);
  if (parsed.ec != std::errc() || parsed.ptr != last) return fail(no_reply("a bad number"));
  if (*type != RespType::kNumber && (line.number < -1 || line.number > kRespStringMax))
    return fail(no_reply("a length that no server sends"));
  line.text = {};
  return line;
}

void append_resp_command(std::string& out, std::initializer_list<std::string_view> words) {
  fmt::format_to(std::back_inserter(out), "*{}\r\n", words.size());
  for (const std::string_view word : words)
    fmt::format_to(std::back_inserter(out), "${}\r\n{}\r\n", word.size(), word);
}

}  // namespace espalier
