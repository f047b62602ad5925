#include "router/kv_events.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "base/msgpack.h"

namespace espalier::router {

namespace {

using enum MsgpackToken::Type;

// The members of an event that stands as an array, in their order, behind its type.
constexpr std::array<std::string_view, 9> kStoredMembers = {
    "block_hashes", "parent_block_hash", "token_ids",  "block_size", "lora_id",
    "medium",       "lora_name",         "extra_keys", "group_idx"};
constexpr std::array<std::string_view, 3> kRemovedMembers = {"block_hashes", "medium", "group_idx"};

constexpr char kKeyBoundary = '\x1f';

struct RawEvent {
  std::string type, medium, adapter;
  KvEvent event;
  int64_t group = 0;  // of layers, where a model has several kinds; the first has all tokens
};

// A hash is a number, or the bytes of a longer one.
bool read_hash(const MsgpackToken& token, uint64_t& hash) {
  if (token.type == kInteger) {
    hash = token.bits;
    return true;
  }
  hash = XXH3_64bits(token.text.data(), token.text.size());
  return token.type == kBytes || token.type == kText;
}

bool read_hashes(MsgpackReader& r, std::vector<uint64_t>& out) {
  MsgpackToken list, token;
  if (!r.next(list) || list.type != kArray) return false;
  for (size_t i = 0; i < list.size; ++i) {
    uint64_t hash = 0;
    if (!r.next(token) || !read_hash(token, hash)) return false;
    out.push_back(hash);
  }
  return true;
}

bool read_tokens(MsgpackReader& r, std::vector<int32_t>& out) {
  MsgpackToken list, token;
  if (!r.next(list) || list.type != kArray) return false;
  for (size_t i = 0; i < list.size; ++i) {
    if (!r.next(token) || token.type != kInteger) return false;
    out.push_back(static_cast<int32_t>(token.bits));
  }
  return true;
}

// Text or nil; anything else counts as what it is not: nothing.
bool read_text(MsgpackReader& r, std::string& out) {
  MsgpackToken token;
  MsgpackReader value = r;
  if (!r.skip() || !value.next(token)) return false;
  if (token.type == kText) out = token.text;
  return true;
}

// For each block a list, or nil. What a list holds is joined: texts as they are, of other values
// their bytes.
bool read_extras(MsgpackReader& r, std::vector<std::string>& out) {
  MsgpackToken list;
  if (!r.next(list)) return false;
  if (list.type == kNil) return true;
  if (list.type != kArray) return false;
  for (size_t i = 0; i < list.size; ++i) {
    MsgpackToken keys, key;
    if (!r.next(keys)) return false;
    std::string& extra = out.emplace_back();
    if (keys.type == kNil) continue;
    if (keys.type != kArray) return false;
    for (size_t k = 0; k < keys.size; ++k) {
      MsgpackReader begin = r;
      if (!r.skip() || !begin.next(key)) return false;
      if (k > 0) extra += kKeyBoundary;
      extra += key.type == kText || key.type == kBytes ? std::string(key.text)
                                                       : std::to_string(key.bits);
    }
  }
  return true;
}

bool read_member(std::string_view name, MsgpackReader& r, RawEvent& raw) {
  MsgpackToken token;
  KvEvent& event = raw.event;
  if (name == "block_hashes") return read_hashes(r, event.hashes);
  if (name == "token_ids") return read_tokens(r, event.tokens);
  if (name == "extra_keys") return read_extras(r, event.extras);
  if (name == "medium") return read_text(r, raw.medium);
  if (name == "lora_name") return read_text(r, raw.adapter);
  if (name == "type") return read_text(r, raw.type);
  if (name == "parent_block_hash") {
    if (!r.next(token)) return false;
    event.has_parent = token.type != kNil;
    return !event.has_parent || read_hash(token, event.parent);
  }
  if (name == "block_size" || name == "group_idx") {
    if (!r.next(token)) return false;
    const bool is_number = token.type == kInteger;
    if (name == "group_idx") {
      raw.group = is_number ? static_cast<int64_t>(token.bits) : 0;
      return true;
    }
    event.block_size = static_cast<uint32_t>(token.bits);
    return is_number;
  }
  return r.skip();
}

bool read_array_event(MsgpackReader& r, size_t size, RawEvent& raw) {
  if (size == 0 || !read_text(r, raw.type)) return false;
  const std::span<const std::string_view> members =
      raw.type == "BlockStored"    ? std::span<const std::string_view>(kStoredMembers)
      : raw.type == "BlockRemoved" ? std::span<const std::string_view>(kRemovedMembers)
                                   : std::span<const std::string_view>();
  for (size_t i = 0; i + 1 < size; ++i)
    if (!read_member(i < members.size() ? members[i] : "", r, raw)) return false;
  return true;
}

bool read_event(MsgpackReader& r, RawEvent& raw) {
  MsgpackToken head, key;
  if (!r.next(head)) return false;
  if (head.type == kArray) return read_array_event(r, head.size, raw);
  if (head.type != kMap) return false;
  for (size_t i = 0; i < head.size; ++i)
    if (!r.next(key) || !read_member(key.text, r, raw)) return false;
  return true;
}

// vLLM repeats the adapter's name among the keys of each block.
void remove_key(std::string& keys, std::string_view key) {
  const std::string all = kKeyBoundary + keys + kKeyBoundary;
  const size_t at = all.find(kKeyBoundary + std::string(key) + kKeyBoundary);
  if (at == std::string::npos) return;
  std::string rest = all.substr(0, at) + all.substr(at + 1 + key.size());
  keys = rest.size() <= 2 ? "" : rest.substr(1, rest.size() - 2);
}

void name_adapter(const std::string& adapter, KvEvent& event) {
  for (std::string& extra : event.extras) remove_key(extra, adapter);
  if (event.has_parent || event.hashes.empty()) return;
  event.extras.resize(event.hashes.size());
  event.extras[0] = adapter_extra(adapter, event.extras[0]);
}

// Appends it where it concerns blocks that prompts find. False where it contradicts itself.
bool take_event(RawEvent&& raw, std::vector<KvEvent>& out) {
  KvEvent& event = raw.event;
  if (raw.type == "AllBlocksCleared") {
    out.push_back({});
    return true;
  }
  if (raw.group != 0) return true;
  event.medium = kv_medium(raw.medium);
  if (raw.type == "BlockRemoved") {
    event.type = KvEvent::Type::kRemoved;
  } else if (raw.type == "BlockStored") {
    event.type = KvEvent::Type::kStored;
    // Where blocks lie elsewhere too, some publishers leave out their tokens.
    const bool is_named = event.tokens.empty() && event.medium != KvMedium::kDevice;
    const size_t num_tokens = is_named ? 0 : event.hashes.size() * event.block_size;
    if ((event.block_size == 0 && !is_named) || event.tokens.size() != num_tokens ||
        (!event.extras.empty() && event.extras.size() != event.hashes.size()))
      return false;
    if (!raw.adapter.empty()) name_adapter(raw.adapter, event);
    if (std::ranges::all_of(event.extras, &std::string::empty)) event.extras.clear();
  } else {
    return true;  // a kind that is not known yet
  }
  out.push_back(std::move(event));
  return true;
}

bool read_events(MsgpackReader& r, std::vector<KvEvent>& out) {
  MsgpackToken list;
  if (!r.next(list) || list.type != kArray) return false;
  for (size_t i = 0; i < list.size; ++i) {
    RawEvent raw;
    if (!read_event(r, raw) || !take_event(std::move(raw), out)) return false;
  }
  return true;
}

}  // namespace

KvMedium kv_medium(std::string_view name) {
  std::string lower;
  for (const char c : name) lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, lower) != names.end();
  };
  if (is_one_of({"", "gpu", "hbm", "device"})) return KvMedium::kDevice;
  if (is_one_of({"cpu", "cpu_pinned", "cpu_tier1", "dram", "host"})) return KvMedium::kHost;
  if (is_one_of({"disk", "cpu_tier2", "ssd", "nvme", "storage", "fs"})) return KvMedium::kDisk;
  return KvMedium::kRemote;
}

std::string adapter_extra(std::string_view adapter, std::string_view extra) {
  return fmt::format("adapter {}{}{}", adapter, kKeyBoundary, extra);
}

Result<std::vector<KvEvent>> decode_kv_events(std::string_view message) {
  MsgpackReader r(message);
  MsgpackToken head, key;
  std::vector<KvEvent> out;
  bool read = r.next(head) && (head.type == kMap || (head.type == kArray && head.size >= 2));
  if (read && head.type == kArray) read = r.skip() && read_events(r, out);  // behind the time
  for (size_t i = 0; read && head.type == kMap && i < head.size; ++i)
    read = r.next(key) && (key.is_text("events") ? read_events(r, out) : r.skip());
  if (!read)
    return fail(error(StatusCode::kDataLoss,
                      "a message of {} bytes is none of vLLM's batches of events", message.size()));
  return out;
}

}  // namespace espalier::router
