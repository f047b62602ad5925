#include "router/ext_proc_messages.h"

#include <algorithm>

#include "router/protobuf.h"

namespace espalier::router {

namespace {

constexpr std::string_view kSubsetSpace = "envoy.lb.subset_hint";
constexpr std::string_view kSubsetKey = "x-gateway-destination-endpoint-subset";
constexpr std::string_view kEndpointSpace = "envoy.lb";

// Calls `take` with each field; false where the bytes are no message.
template <typename Take>
bool each_field(std::string_view message, const Take& take) {
  ProtoReader reader(message);
  ProtoField field;
  while (reader.next(field)) take(field);
  return reader.ok();
}

// The value of a key in a map<string, ...> of field `number`: an entry is a message of both. ""
// where there is none.
std::string_view map_value(std::string_view message, uint32_t number, std::string_view key) {
  std::string_view found;
  (void)each_field(message, [&](const ProtoField& field) {
    if (field.number != number) return;
    std::string_view name, value;
    (void)each_field(field.bytes, [&](const ProtoField& part) {
      if (part.number == 1) name = part.bytes;
      if (part.number == 2) value = part.bytes;
    });
    if (name == key) found = value;
  });
  return found;
}

// HeaderMap: headers = 1 of key = 1, value = 2, raw_value = 3.
bool read_headers(std::string_view map, net::Headers& out) {
  bool good = true;
  const bool read = each_field(map, [&](const ProtoField& field) {
    if (field.number != 1) return;
    std::string_view key, value;
    good = each_field(field.bytes,
                      [&](const ProtoField& part) {
                        if (part.number == 1) key = part.bytes;
                        if (part.number == 2 || part.number == 3)
                          if (!part.bytes.empty()) value = part.bytes;
                      }) &&
           good;
    out.emplace_back(key, value);
  });
  return read && good;
}

// Of google.protobuf.Value: list_value = 6 of values = 1, string_value = 3. One text may also name
// several, with commas between them.
std::vector<std::string> read_list(std::string_view value) {
  std::vector<std::string> out;
  const auto add = [&](std::string_view text) {
    while (!text.empty()) {
      const size_t end = std::min(text.find(','), text.size());
      out.emplace_back(text.substr(0, end));
      text.remove_prefix(std::min(text.size(), end + 1));
    }
  };
  const auto add_text = [&](const ProtoField& part) {
    if (part.number == 3) add(part.bytes);
  };
  (void)each_field(value, [&](const ProtoField& field) {
    add_text(field);
    if (field.number != 6) return;
    (void)each_field(field.bytes, [&](const ProtoField& item) {
      if (item.number == 1) (void)each_field(item.bytes, add_text);
    });
  });
  return out;
}

// Metadata: filter_metadata = 1, a map of Structs, each with fields = 1.
void read_metadata(std::string_view metadata, ExtProcMessage& out) {
  const std::string_view hint = map_value(metadata, 1, kSubsetSpace);
  if (hint.empty()) return;
  const std::string_view list = map_value(hint, 1, kSubsetKey);
  if (list.data() != nullptr) out.subset = read_list(list);
}

bool read_phase(const ProtoField& field, ExtProcMessage& out) {
  out.phase = static_cast<ExtProcPhase>(field.number - 1);
  const bool is_body = field.number == 4 || field.number == 5;
  bool good = true;
  const bool read = each_field(field.bytes, [&](const ProtoField& part) {
    if (part.number == 1 && is_body) out.body = part.bytes;
    if (part.number == 1 && !is_body) good = read_headers(part.bytes, out.headers);
    if (part.number == (is_body ? 2u : 3u)) out.ends = part.value != 0;
    if (is_body && part.number == 3) out.ends = out.ends || part.value != 0;
  });
  return read && good;
}

BodyMode body_mode(uint64_t value) {
  return value <= 4 ? static_cast<BodyMode>(value) : BodyMode::kNone;
}

// HeaderMutation: set_headers = 1 (header = 1 of key = 1 and raw_value = 3; append_action = 3, 2
// for overwriting), remove_headers = 2.
std::string header_mutation(const HeaderChanges& changes) {
  std::string out;
  for (const auto& [name, value] : changes.set) {
    std::string header, option;
    put_bytes(header, 1, name);
    put_bytes(header, 3, value);
    put_bytes(option, 1, header);
    put_number(option, 3, 2);
    put_bytes(out, 1, option);
  }
  for (const std::string& name : changes.removed) put_bytes(out, 2, name);
  return out;
}

// Struct of one member, fields = 1, whose Value has the field `kind`.
std::string struct_of(std::string_view key, uint32_t kind, std::string_view content) {
  std::string value, entry, out;
  put_bytes(value, kind, content);
  put_bytes(entry, 1, key);
  put_bytes(entry, 2, value);
  put_bytes(out, 1, entry);
  return out;
}

// The field of ProcessingResponse that answers a phase: its number is that of the phase.
uint32_t answer_field(ExtProcPhase phase) { return static_cast<uint32_t>(phase); }

}  // namespace

Result<ExtProcMessage> read_ext_proc_message(std::string_view bytes) {
  ExtProcMessage out;
  bool good = true;
  const bool read = each_field(bytes, [&](const ProtoField& field) {
    if (field.number >= 2 && field.number <= 7) good = read_phase(field, out) && good;
    if (field.number == 8) read_metadata(field.bytes, out);
    if (field.number == 10) out.is_observed = field.value != 0;
    if (field.number != 11) return;
    out.request_body = out.response_body = BodyMode::kNone;
    good = each_field(field.bytes,
                      [&](const ProtoField& part) {
                        if (part.number == 1) out.request_body = body_mode(part.value);
                        if (part.number == 2) out.response_body = body_mode(part.value);
                      }) &&
           good;
  });
  if (!read || !good)
    return fail(
        invalid_argument("the message is no ProcessingRequest of envoy.service.ext_proc.v3"));
  return out;
}

std::string ext_proc_answer(ExtProcPhase phase, const HeaderChanges& changes,
                            std::string_view endpoints) {
  const bool is_trailers =
      phase == ExtProcPhase::kRequestTrailers || phase == ExtProcPhase::kResponseTrailers;
  const std::string mutation = header_mutation(changes);
  std::string common, answer, out;
  if (!mutation.empty()) put_bytes(common, 2, mutation);
  // The cluster may be chosen by headers that changed.
  if (!endpoints.empty()) put_number(common, 5, 1);
  if (!common.empty() && !is_trailers) put_bytes(answer, 1, common);
  put_bytes(out, answer_field(phase), answer);
  if (!endpoints.empty())
    put_bytes(out, 8, struct_of(kEndpointSpace, 5, struct_of(kEndpointHeader, 3, endpoints)));
  return out;
}

std::string ext_proc_body_part(ExtProcPhase phase, std::string_view bytes, bool ends) {
  std::string part, mutation, common, answer, out;
  put_bytes(part, 1, bytes);
  if (ends) put_number(part, 2, 1);
  put_bytes(mutation, 3, part);
  put_bytes(common, 3, mutation);
  put_bytes(answer, 1, common);
  put_bytes(out, answer_field(phase), answer);
  return out;
}

std::string ext_proc_immediate_answer(const net::HttpResponse& response) {
  std::string status, answer, out;
  put_number(status, 1, static_cast<uint64_t>(response.status));
  put_bytes(answer, 1, status);
  put_bytes(answer, 2, header_mutation({.set = response.headers}));
  put_bytes(answer, 3, response.body);
  put_bytes(answer, 5, "espalier_endpoint_picker");
  put_bytes(out, 7, answer);
  return out;
}

}  // namespace espalier::router
