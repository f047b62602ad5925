// How a node joins those that compute one model with it. The leader is node 0 and listens; each
// other node opens two connections to it, one for steps and one for heartbeats:
//
//   leader                                       follower
//   kChallenge (version, nonce)              ->
//                                            <-  kHello (node, channel, agreement), proof of the
//                                            token
//   kAccept (proof of the token)             ->          or kRefused (why), and the end
//
// Decoders take any bytes: what is malformed is a Status, and no length in it makes them allocate
// more than the payload has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transfer/frame.h"

namespace espalier::nodes {

inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr int32_t kNodesMax = 1024;

enum class Channel : uint8_t { kSteps, kHeartbeat };

// What all nodes must have alike, in one order: names as users know them, and values.
using Agreement = std::vector<std::pair<std::string, std::string>>;

struct Hello {
  uint32_t version = kProtocolVersion;
  transfer::Nonce nonce{};  // which the leader's proof answers
  int32_t node = 0;
  int32_t num_nodes = 0;
  Channel channel = Channel::kSteps;
  Agreement agreement;
};

struct Challenge {
  uint32_t version = kProtocolVersion;
  transfer::Nonce nonce{};
};

std::string encode(const Challenge& challenge);
std::string encode(const Hello& hello);
Result<Challenge> decode_challenge(std::string_view payload);
Result<Hello> decode_hello(std::string_view payload);

// Ok where both are equal; else kFailedPrecondition, which names what differs and what to do.
Status check_agreement(const Agreement& leader, const Agreement& follower, int32_t node);

}  // namespace espalier::nodes
