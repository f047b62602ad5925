#include "nodes/handshake.h"

#include "nodes/node_group.h"

namespace espalier::nodes {
namespace {

using transfer::prove;
using transfer::text_of;

constexpr size_t kHelloBytesMax = size_t{64} << 10;
constexpr size_t kProofBytes = std::tuple_size_v<transfer::Proof>;
// A caller that says nothing keeps others waiting for so long.
constexpr Duration kGreetingWait = std::chrono::seconds(2);

Status check_hello(const Hello& hello, const NodeGroupConfig& config) {
  if (hello.version != kProtocolVersion)
    return error(StatusCode::kFailedPrecondition,
                 "node {} speaks version {} of the nodes' protocol, the leader version {}: run the "
                 "same version on all nodes",
                 hello.node, hello.version, kProtocolVersion);
  if (hello.num_nodes != config.num_nodes)
    return error(StatusCode::kFailedPrecondition,
                 "node {} was started with --nnodes {}, the leader with --nnodes {}: start all "
                 "nodes with the same",
                 hello.node, hello.num_nodes, config.num_nodes);
  if (hello.node >= config.num_nodes)
    return error(StatusCode::kFailedPrecondition, "--node-rank {} is not below --nnodes {}",
                 hello.node, config.num_nodes);
  return check_agreement(config.agreement, hello.agreement, hello.node);
}

// Nothing of the greeting is interpreted before its proof has been checked.
Result<Hello> read_hello(Link& link, const NodeGroupConfig& config, bool& knows_token) {
  const Challenge challenge{.nonce = transfer::draw_nonce()};
  ESP_RETURN_IF_ERROR(link.send(MessageType::kChallenge, encode(challenge), kGreetingWait));
  ESP_ASSIGN_OR_RETURN(const std::string_view payload,
                       link.receive_one(MessageType::kHello, kHelloBytesMax, kGreetingWait));
  if (payload.size() < kProofBytes)
    return fail(
        error(StatusCode::kDataLoss, "no greeting was received: is the caller an Espalier node?"));
  const std::string_view body = payload.substr(0, payload.size() - kProofBytes);
  if (!transfer::equal(prove(config.token, {"node", text_of(challenge.nonce), body}),
                       payload.substr(body.size())))
    return fail(error(StatusCode::kUnauthenticated,
                      "the token of the node is another one: start all nodes with the same "
                      "--dist-token"));
  knows_token = true;
  return decode_hello(body);
}

}  // namespace

void refuse(Link& link, const Status& why) {
  static_cast<void>(link.send(MessageType::kRefused, why.message(), kGreetingWait));
}

Greeted greet_follower(Link& link, const NodeGroupConfig& config) {
  Greeted out;
  link.stream().set_deadline(SteadyClock().now() + kGreetingWait);
  auto hello = read_hello(link, config, out.ends_start);
  out.status = hello ? check_hello(*hello, config) : hello.error();
  link.stream().set_deadline(TimePoint::max());
  if (hello) out.hello = *std::move(hello);
  if (!out.status.ok()) refuse(link, out.status);
  return out;
}

Status accept(Link& link, const NodeGroupConfig& config, const Hello& hello) {
  const transfer::Proof proof = prove(config.token, {"leader", text_of(hello.nonce)});
  return link.send(MessageType::kAccept, text_of(proof), kGreetingWait);
}

Status greet_leader(Link& link, const NodeGroupConfig& config, Channel channel,
                    TimePoint deadline) {
  link.stream().set_deadline(deadline);
  const Duration wait = config.join_timeout;
  ESP_ASSIGN_OR_RETURN(const std::string_view payload,
                       link.receive_one(MessageType::kChallenge, kHelloBytesMax, wait));
  ESP_ASSIGN_OR_RETURN(const Challenge challenge, decode_challenge(payload));
  if (challenge.version != kProtocolVersion)
    return error(StatusCode::kFailedPrecondition,
                 "the leader speaks version {} of the nodes' protocol, this node version {}: run "
                 "the same version on all nodes",
                 challenge.version, kProtocolVersion);
  const Hello hello{.nonce = transfer::draw_nonce(),
                    .node = config.node,
                    .num_nodes = config.num_nodes,
                    .channel = channel,
                    .agreement = config.agreement};
  std::string body = encode(hello);
  const transfer::Proof proof = prove(config.token, {"node", text_of(challenge.nonce), body});
  body += text_of(proof);
  ESP_RETURN_IF_ERROR(link.send(MessageType::kHello, body, wait));
  auto answer = link.receive_one(MessageType::kAccept, kHelloBytesMax, wait);
  if (!answer) return answer.error().with_context("the leader does not take this node");
  if (!transfer::equal(prove(config.token, {"leader", text_of(hello.nonce)}), *answer))
    return error(StatusCode::kUnauthenticated,
                 "the leader does not know the token: start all nodes with the same --dist-token");
  link.stream().set_deadline(TimePoint::max());
  return {};
}

}  // namespace espalier::nodes
