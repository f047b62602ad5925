#include "grammar/schema/formats.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

namespace espalier::grammar {
namespace {

// The parts of RFC 3339 timestamps.
#define ESP_DATE                                                        \
  "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"       \
  "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|" \
  "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|"                       \
  "(?:[02468][048]|[13579][26])00)-02-29)"
#define ESP_SECOND_FRACTION "(?:\\.[0-9]+)?"
#define ESP_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define ESP_OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define ESP_IPV4 ESP_OCTET "(?:\\." ESP_OCTET "){3}"
#define ESP_H16 "[0-9A-Fa-f]{1,4}"
#define ESP_LS32 "(?:" ESP_H16 ":" ESP_H16 "|" ESP_IPV4 ")"
#define ESP_IPV6                                                                           \
  "(?:(?:" ESP_H16 ":){6}" ESP_LS32 "|::(?:" ESP_H16 ":){5}" ESP_LS32 "|(?:" ESP_H16       \
  ")?::(?:" ESP_H16 ":){4}" ESP_LS32 "|(?:(?:" ESP_H16 ":){0,1}" ESP_H16 ")?::(?:" ESP_H16 \
  ":){3}" ESP_LS32 "|(?:(?:" ESP_H16 ":){0,2}" ESP_H16 ")?::(?:" ESP_H16 ":){2}" ESP_LS32  \
  "|(?:(?:" ESP_H16 ":){0,3}" ESP_H16 ")?::" ESP_H16 ":" ESP_LS32 "|(?:(?:" ESP_H16        \
  ":){0,4}" ESP_H16 ")?::" ESP_LS32 "|(?:(?:" ESP_H16 ":){0,5}" ESP_H16 ")?::" ESP_H16     \
  "|(?:(?:" ESP_H16 ":){0,6}" ESP_H16 ")?::)"
// RFC 3986: the characters of URI parts.
#define ESP_PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define ESP_SEGMENTS "(?:/" ESP_PCHAR "*)*"
#define ESP_AUTHORITY                                                                             \
  "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?"                                        \
  "(?:\\[(?:" ESP_IPV6                                                                            \
  "|[Vv][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-" \
  "f]{2})*)(?::[0-9]*)?"
#define ESP_QUERY "(?:\\?(?:" ESP_PCHAR "|[/?])*)?(?:#(?:" ESP_PCHAR "|[/?])*)?"
#define ESP_HIER                                                        \
  "(?://" ESP_AUTHORITY ESP_SEGMENTS "|/(?:" ESP_PCHAR "+" ESP_SEGMENTS \
  ")?"                                                                  \
  "|" ESP_PCHAR "+" ESP_SEGMENTS "|)"
#define ESP_SCHEME "[A-Za-z][A-Za-z0-9+.-]*:"
#define ESP_NOCOLON "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
#define ESP_RELATIVE                                                    \
  "(?://" ESP_AUTHORITY ESP_SEGMENTS "|/(?:" ESP_PCHAR "+" ESP_SEGMENTS \
  ")?"                                                                  \
  "|" ESP_NOCOLON "+" ESP_SEGMENTS "|)"
#define ESP_ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define ESP_POINTER "(?:/(?:[^~/]|~[01])*)*"

constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kFormats = {{
    {"date", "^" ESP_DATE "$"},
    {"duration",
     "^P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
     "(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?"
     "|T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))$"},
    {"email",
     "^(?:" ESP_ATOM "(?:\\." ESP_ATOM ")*|\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\")@(?:" ESP_LABEL
     "(?:\\." ESP_LABEL ")*|\\[(?:" ESP_IPV4 "|IPv6:" ESP_IPV6 ")\\])$"},
    {"hostname", "^" ESP_LABEL "(?:\\." ESP_LABEL ")*$"},
    {"ipv4", "^" ESP_IPV4 "$"},
    {"ipv6", "^" ESP_IPV6 "$"},
    {"uri", "^" ESP_SCHEME ESP_HIER ESP_QUERY "$"},
    {"uri-reference", "^(?:" ESP_SCHEME ESP_HIER "|" ESP_RELATIVE ")" ESP_QUERY "$"},
    {"iri", "^[A-Za-z][A-Za-z0-9+.-]*:[^\\x00- \"<>\\\\^`{|}]*$"},
    {"iri-reference", "^[^\\x00- \"<>\\\\^`{|}]*$"},
    {"uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"},
    {"json-pointer", "^" ESP_POINTER "$"},
    {"relative-json-pointer", "^(?:0|[1-9][0-9]*)(?:#|" ESP_POINTER ")$"},
    {"uri-template",
     "^(?:[^\\x00- \"'<>%\\\\^`{|}]|%[0-9A-Fa-f]{2}|\\{[+#./;?&=,!@|]?"
     "[A-Za-z0-9_.%]+(?::[1-9][0-9]{0,3}|\\*)?(?:,[A-Za-z0-9_.%]+"
     "(?::[1-9][0-9]{0,3}|\\*)?)*\\})*$"},
}};

// Local times at which the leap second 23:59:60 UTC occurs, with their offsets. Offsets in use are
// multiples of half an hour as far as new ones are concerned; each other one would add states to
// every time.
std::string leap_seconds() {
  constexpr int kDay = 24 * 60, kLast = kDay - 1, kStep = 30;  // minutes
  std::string out = "23:59:60" ESP_SECOND_FRACTION "[Zz]";
  for (int offset = 0; offset < kDay; offset += kStep) {
    const int ahead = (kLast + offset) % kDay;
    const int behind = (kDay - offset) % kDay;  // the offset west that gives the same local time
    out += fmt::format("|{:02}:{:02}:60" ESP_SECOND_FRACTION "(?:\\+{:02}:{:02}|-{:02}:{:02})",
                       ahead / 60, ahead % 60, offset / 60, offset % 60, behind / 60, behind % 60);
  }
  return out;
}

const std::string& time_pattern() {
  static const std::string pattern =
      "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]" ESP_SECOND_FRACTION
      "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])|" +
      leap_seconds() + ")";
  return pattern;
}

}  // namespace

std::optional<std::string_view> format_pattern(std::string_view format) {
  static const std::string time = "^" + time_pattern() + "$";
  static const std::string date_time = "^" ESP_DATE "[Tt]" + time_pattern() + "$";
  if (format == "time") return time;
  if (format == "date-time") return date_time;
  for (const auto& [name, pattern] : kFormats) {
    if (name == format) return pattern;
  }
  return std::nullopt;
}

std::optional<int64_t> format_length_max(std::string_view format) {
  constexpr int64_t kHostnameMax = 253;  // RFC 1123
  return format == "hostname" ? std::optional(kHostnameMax) : std::nullopt;
}

}  // namespace espalier::grammar
