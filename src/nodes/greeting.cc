#include "nodes/greeting.h"

#include "nodes/bytes.h"

namespace espalier::nodes {
namespace {

constexpr size_t kAgreementMax = 64;  // fields

template <typename T>
Result<T> whole(const ByteReader& reader, T value, std::string_view what) {
  if (!reader.complete())
    return fail(error(StatusCode::kDataLoss,
                      "a malformed {} was received: is the other side an Espalier node of this "
                      "version (--dist-init-addr)?",
                      what));
  return value;
}

void append_nonce(std::string& out, const transfer::Nonce& nonce) {
  out.append(nonce.begin(), nonce.end());
}

}  // namespace

std::string encode(const Challenge& challenge) {
  std::string out;
  append_big_endian(out, challenge.version, 4);
  append_nonce(out, challenge.nonce);
  return out;
}

Result<Challenge> decode_challenge(std::string_view payload) {
  ByteReader reader(payload);
  Challenge challenge{.version = reader.number<uint32_t>()};
  challenge.nonce = reader.array<std::tuple_size_v<transfer::Nonce>>();
  return whole(reader, challenge, "challenge");
}

std::string encode(const Hello& hello) {
  std::string out;
  append_big_endian(out, hello.version, 4);
  append_nonce(out, hello.nonce);
  append_int(out, hello.node);
  append_int(out, hello.num_nodes);
  out += static_cast<char>(hello.channel);
  append_big_endian(out, hello.agreement.size(), 4);
  for (const auto& [name, value] : hello.agreement) {
    append_text(out, name);
    append_text(out, value);
  }
  return out;
}

Result<Hello> decode_hello(std::string_view payload) {
  ByteReader reader(payload);
  Hello hello{.version = reader.number<uint32_t>()};
  hello.nonce = reader.array<std::tuple_size_v<transfer::Nonce>>();
  hello.node = reader.number_in(1, kNodesMax - 1);
  hello.num_nodes = reader.number_in(2, kNodesMax);
  hello.channel = reader.flag() ? Channel::kHeartbeat : Channel::kSteps;
  hello.agreement.resize(reader.count(8, kAgreementMax));
  for (auto& [name, value] : hello.agreement) {
    name = reader.text();
    value = reader.text();
  }
  return whole(reader, std::move(hello), "greeting");
}

Status check_agreement(const Agreement& leader, const Agreement& follower, int32_t node) {
  for (size_t i = 0; i < std::max(leader.size(), follower.size()); ++i) {
    const auto& [name, ours] = i < leader.size() ? leader[i] : Agreement::value_type();
    const auto& [their_name, theirs] = i < follower.size() ? follower[i] : Agreement::value_type();
    if (name != their_name)
      return error(StatusCode::kFailedPrecondition,
                   "node {} states \"{}\" where the leader states \"{}\": run the same version on "
                   "all nodes",
                   node, their_name, name);
    if (ours != theirs)
      return error(StatusCode::kFailedPrecondition,
                   "{} of node {} is \"{}\", the leader's is \"{}\": start all nodes with the same "
                   "version, model and settings",
                   name, node, theirs, ours);
  }
  return {};
}

}  // namespace espalier::nodes
